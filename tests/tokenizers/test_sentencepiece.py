"""SentencePiece models: the pieces of the library, the ids of transformers, and no crash on malformed bytes."""

from __future__ import annotations

import base64
import json
import random
from pathlib import Path
from typing import Any

import pytest
from tokenizers import normalizers

from bertsmith.errors import DataError
from bertsmith.tokenizers import sentencepiece as reader
from bertsmith.tokenizers.sentencepiece import check_characters_map, read_model
from bertsmith.tokenizers.tokenizer import load

sentencepiece = pytest.importorskip("sentencepiece")

LINES = [
    "The smith's hammer rang 1,000 times, then 2,000 times (in 1842).",
    "A cold-forged blade — of iron; naïve café ﬁne ½",
    "서울은 한국의 수도이다. 北京是中国的首都。",
]
TEXTS = [*LINES, "", "  two  spaces\tand a tab ", "THE CAFÉ", "unknown ☃ snowman", "a-b (c)"]


def train(folder: Path, name: str, **options: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "lines.txt").write_text("\n".join(LINES * 20), encoding="utf-8")
    usual = {"vocab_size": 150, "hard_vocab_limit": False, "minloglevel": 2, "model_prefix": str(folder / "model")}
    sentencepiece.SentencePieceTrainer.train(input=str(folder / "lines.txt"), **usual | options)
    (folder / "model.vocab").unlink()
    (folder / "lines.txt").unlink()
    return (folder / "model.model").rename(folder / name)


ALBERT = {"pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1, "control_symbols": ["[CLS]", "[SEP]", "[MASK]"]}


@pytest.mark.parametrize("options", [{}, {"user_defined_symbols": ["(", "-"]}, {"normalization_rule_name": "identity"}])
def test_pieces_are_those_of_the_library(options: dict[str, Any], tmp_path: Path) -> None:
    path = train(tmp_path / "m", "spiece.model", **ALBERT, **options)
    model, oracle = read_model(path), sentencepiece.SentencePieceProcessor(str(path))
    expected = [(oracle.id_to_piece(n), oracle.get_score(n)) for n in range(oracle.get_piece_size())]
    assert model.pieces == expected
    assert [kind == 3 for kind in model.types] == [oracle.is_control(n) for n in range(oracle.get_piece_size())]
    assert bool(model.characters_map) is ("normalization_rule_name" not in options)


@pytest.mark.parametrize("settings", [{}, {"do_lower_case": False, "keep_accents": True}, {"keep_accents": True}])
@pytest.mark.parametrize("model_type", ["albert", "xlm-roberta"])
def test_ids_are_those_of_transformers(model_type: str, settings: dict[str, bool], tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    folder = tmp_path / "m"
    if model_type == "albert":
        train(folder, "spiece.model", **ALBERT, user_defined_symbols=["(", "-"])
    else:
        train(folder, "sentencepiece.bpe.model", unk_id=0, bos_id=1, eos_id=2)
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    if settings:
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = load(folder)
    assert any("user-defined symbols ((, -)" in note for note in tokenizer.notes) is (model_type == "albert")
    tokenizer.save(tmp_path / "saved")
    (tmp_path / "saved" / "config.json").write_text(json.dumps({"model_type": model_type}))
    for theirs in map(transformers.AutoTokenizer.from_pretrained, (folder, tmp_path / "saved")):
        assert len(theirs) == tokenizer.vocab_size
        for text in TEXTS:
            assert tokenizer.frame(tokenizer.encode(text), max_length=500).ids.tolist() == theirs(text)["input_ids"], (
                text
            )
            pair = tokenizer.frame(tokenizer.encode("a"), tokenizer.encode(text or "b"), max_length=500)
            assert pair.ids.tolist() == theirs("a", text or "b")["input_ids"]
    assert load(tmp_path / "saved").encode_ids(TEXTS)[0].tolist() == tokenizer.encode_ids(TEXTS)[0].tolist()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"model_type": "bpe"}, "a bpe model"),
        ({"model_type": "char"}, "a char model"),
        ({"byte_fallback": True, "vocab_size": 400}, "byte_fallback"),
    ],
)
def test_other_models_are_refused(options: dict[str, Any], words: str, tmp_path: Path) -> None:
    path = train(tmp_path / "m", "spiece.model", **ALBERT | options)
    with pytest.raises(DataError, match=words) as error:
        load(path.parent)
    assert "\n" not in str(error.value)


def test_malformed_models_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "MAX_PIECES", 1000)
    path = train(tmp_path / "m", "spiece.model", **ALBERT)
    data, draw = path.read_bytes(), random.Random(1)
    small = data[:3000]  # pieces, without the characters map
    changed = [data[:size] for size in (1, 100, len(data) // 2, len(data) - 1)]
    for _ in range(300):
        bytes_ = bytearray(small)
        for _ in range(draw.randint(1, 4)):
            bytes_[draw.randrange(len(bytes_))] = draw.randrange(256)
        changed.append(bytes(bytes_))
    changed += [draw.randbytes(draw.randint(1, 200)) for _ in range(300)]
    changed += [b"", b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f", b"\x0a\x00" * 1001, b"\xff" * 50]
    errors = []
    for content in changed:
        path.write_bytes(content)
        try:
            load(path.parent)
        except DataError as error:
            errors.append(str(error))
    assert len(errors) > len(changed) // 2
    assert all(str(path.parent) in error and "\n" not in error for error in errors)


def test_malformed_character_maps_do_not_crash(tmp_path: Path) -> None:
    """Lookups in the map are unchecked in the tokenizers library, where they end in a panic."""
    path = train(tmp_path / "m", "spiece.model", **ALBERT)
    original, draw = read_model(path).characters_map, random.Random(2)
    check_characters_map(original)
    refused = 0
    for number in range(60):
        data = bytearray(original)
        if number % 3 == 0:  # the size of the trie
            data[:4] = draw.randrange(1 << 18).to_bytes(4, "little")
        for _ in range((3, 300, 20_000)[number % 3]):
            data[4 + draw.randrange(len(data) - 4)] = draw.randrange(256)
        try:
            check_characters_map(bytes(data))
            rules = normalizers.Precompiled(bytes(data))
        except Exception:
            refused += 1
            continue
        for text in [*TEXTS, *map(chr, range(1, 0x3000, 7))]:
            rules.normalize_str(text)
    assert refused > 30


def test_malformed_character_map_of_a_definition_is_refused(tmp_path: Path) -> None:
    path = train(tmp_path / "m", "spiece.model", **ALBERT)
    load(path.parent).save(tmp_path / "saved")
    file = tmp_path / "saved" / "tokenizer.json"
    definition = json.loads(file.read_text())
    step = next(one for one in definition["normalizer"]["normalizers"] if one["type"] == "Precompiled")
    data = bytearray(base64.b64decode(step["precompiled_charsmap"]))
    data[4:8] = b"\xff\xff\xff\x7f"  # the root of the trie
    step["precompiled_charsmap"] = base64.b64encode(data).decode()
    file.write_text(json.dumps(definition))
    with pytest.raises(DataError, match="outside of the trie"):
        load(tmp_path / "saved")
