"""What all tokenizers share: frames, look-up, folders, fingerprints, the cache of the fast path."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertsmith.errors import BertsmithError, ConfigError, DataError
from bertsmith.system.durable import Disk
from bertsmith.tokenizers import special_tokens
from bertsmith.tokenizers.special_tokens import SpecialTokens
from bertsmith.tokenizers.tokenizer import kind, kinds, load
from bertsmith.tokenizers.wordpiece import WordPiece
from bertsmith.types import Encoded

TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "##c", "d", ",", "new", "york"]


def tokenizer(tokens: list[str] = TOKENS, **rules: bool) -> WordPiece:
    return WordPiece.build(tokens, **rules)


def google_truncation(first: int, second: int, room: int) -> tuple[int, int]:
    """bert: run_classifier.py, `_truncate_seq_pair`, on lengths."""
    while first + second > room:
        if first > second:
            first -= 1
        else:
            second -= 1
    return first, second


@settings(deadline=None)
@given(st.integers(0, 60), st.integers(0, 60), st.integers(0, 130))
def test_truncation_is_googles(first: int, second: int, room: int) -> None:
    assert special_tokens.truncate_pair(first, second, budget=room) == google_truncation(first, second, room)


def test_frames_look_like_berts() -> None:
    smith = tokenizer()
    a, b = smith.encode("a bc"), smith.encode("d,")
    single = smith.frame(a, max_length=10)
    assert [smith.id_to_token(number) for number in single.ids] == ["[CLS]", "a", "b", "##c", "[SEP]"]
    assert single.segment_ids.tolist() == [0] * 5
    pair = smith.frame(a, b, max_length=10)
    assert [smith.id_to_token(number) for number in pair.ids] == ["[CLS]", "a", "b", "##c", "[SEP]", "d", ",", "[SEP]"]
    assert pair.segment_ids.tolist() == [0, 0, 0, 0, 0, 1, 1, 1]
    assert pair.sequence_ids.tolist() == [-1, 0, 0, 0, -1, 1, 1, -1]
    assert pair.offsets.tolist() == [[0, 0], [0, 1], [2, 3], [3, 4], [0, 0], [0, 1], [1, 2], [0, 0]]
    assert pair.words.tolist() == [-1, 0, 1, 1, -1, 0, 1, -1]
    assert smith.frame(a, b, max_length=6).truncated == (1, 1)
    assert (single.ids.dtype, single.segment_ids.dtype, single.sequence_ids.dtype) == (np.int32, np.uint8, np.int8)


def test_an_empty_text_is_framed() -> None:
    smith = tokenizer()
    nothing = smith.encode("")
    assert isinstance(nothing, Encoded)
    assert smith.frame(nothing, max_length=2).ids.tolist() == [2, 3]
    assert smith.frame(nothing, nothing, max_length=3).segment_ids.tolist() == [0, 0, 1]


def test_kinds_are_the_files_of_the_folder() -> None:
    assert {"wordpiece", "byte_bpe", "bpe"} <= set(kinds())
    assert kind("wordpiece").tokenizer is WordPiece
    assert all(kind(name).tokenizer.kind == name for name in kinds())
    with pytest.raises(ConfigError, match="did you mean wordpiece"):
        kind("wordpeice")


def test_no_class_name_means_two_kinds() -> None:
    names = [name for found in kinds() for name in kind(found).tokenizer.transformers_classes]
    assert len(names) == len(set(names))


def test_ids_take_two_bytes_where_they_fit() -> None:
    assert tokenizer().id_dtype == np.uint16
    large = tokenizer(TOKENS + [f"w{number}" for number in range(1 << 16)])
    assert large.id_dtype == np.uint32
    assert large.encode_ids(["w65535 a"])[0].tolist() == [len(TOKENS) + 65535, 5]


def test_whatever_changes_ids_changes_the_fingerprint() -> None:
    base = tokenizer()
    others = [
        tokenizer(lowercase=False),
        tokenizer(strip_accents=False),
        tokenizer(chinese_spacing=False),
        tokenizer([*TOKENS[:-1], "yorks"]),
        tokenizer([*TOKENS[:5], "b", "a", *TOKENS[7:]]),
        WordPiece.build(TOKENS, special_tokens=replace(base.special_tokens, mask="d")),
    ]
    assert len({base.fingerprint, *(other.fingerprint for other in others)}) == 7
    assert tokenizer(strip_accents=True).fingerprint == base.fingerprint
    assert WordPiece.build(TOKENS, max_length=64).fingerprint == base.fingerprint


def test_the_cache_of_the_fast_path_is_bounded() -> None:
    smith = tokenizer()
    smith._cache.limit = 3
    texts = [" ".join(f"a{letter}" for letter in "abcdefgh"[start : start + 3]) for start in range(6)] * 3
    for text in texts:
        ids, counts = smith.encode_ids([text])
        assert ids.tolist() == smith.encode(text).ids.tolist()
        assert counts.tolist() == [len(ids)]
        assert all(len(table) <= 6 for table in smith._cache.tables)


def test_the_fast_path_does_not_cache_what_is_unlikely_to_recur() -> None:
    smith = tokenizer()
    texts = ["b a" + "c" * 80, "a " * 40 + "\x0c", "b\x0c a", "a" + "c" * 99 + " d", "a"]
    for _ in range(2):
        ids, counts = smith.encode_ids(texts)
        assert counts.tolist() == [82, 40, 2, 101, 1]
        assert ids.tolist() == [number for text in texts for number in smith.encode(text).ids]
        assert set(smith._cache.tables[0]) == {"a", "b", "d", "b\x0c a"}


def test_tokens_that_others_added_are_found_in_texts(tmp_path: Path) -> None:
    tokenizer().save(tmp_path)
    definition = json.loads((tmp_path / "tokenizer.json").read_text())
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    definition["added_tokens"] += [
        {"id": 12, "content": "New York", "special": False, **flags},
        {"id": 13, "content": "[E]", "special": True, **flags},
    ]
    (tmp_path / "tokenizer.json").write_text(json.dumps(definition))
    smith = load(tmp_path)
    assert smith.tokens()[-2:] == ["New York", "[E]"]
    assert 13 in smith.special_ids
    assert 12 not in smith.special_ids
    assert smith.encode("a New York, [E]").ids.tolist()[:3] == [5, 12, 9]
    assert 13 not in smith.encode("[E]").ids
    assert smith.encode_ids(["a New York, [E]", "new york"])[0].tolist()[:3] == [5, 12, 9]
    smith.save(tmp_path / "again")
    assert load(tmp_path / "again").fingerprint == smith.fingerprint != tokenizer().fingerprint
    definition["added_tokens"][-1]["id"] = 20
    (tmp_path / "tokenizer.json").write_text(json.dumps(definition))
    with pytest.raises(DataError, match=r"'\[E\]' has id 20"):
        load(tmp_path)


def test_saving_goes_through_the_given_disk(tmp_path: Path) -> None:
    written: list[str] = []

    class Recording(Disk):
        def write_file(self, path, chunks, *, atomic=True):  # type: ignore[no-untyped-def]
            written.append(Path(path).name)
            return super().write_file(path, chunks, atomic=atomic)

    smith = tokenizer()
    smith.save(tmp_path / "folder", disk=Recording())
    assert sorted(written) == sorted(smith.files())
    assert {path.name: path.read_bytes() for path in (tmp_path / "folder").iterdir()} == smith.files()


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "is not a tokenizer: it has no tokenizer.json"),
        ({"tokenizer_config.json": b'{"tokenizer_class": "LlamaTokenizer"}'}, "LlamaTokenizer"),
        ({"tokenizer_config.json": b"{"}, "tokenizer_config.json is not JSON"),
        ({"tokenizer_config.json": b"[1]"}, "must hold a JSON object, not list"),
        ({"tokenizer.json": b'{"model": {"type": "WordPiece"}}'}, "tokenizer.json cannot be read"),
        ({"vocab.txt": b"\xff\xfe"}, "vocab.txt is not UTF-8"),
        ({"vocab.txt": b"[PAD]\na\n"}, r"lacks the special tokens \[UNK\], \[CLS\], \[SEP\], \[MASK\]"),
    ],
)
def test_a_folder_that_cannot_be_read_says_why(tmp_path: Path, files: dict[str, bytes], message: str) -> None:
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        load(tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not a folder"):
        load(tmp_path / "nothing")


def test_damaged_definitions_are_data_errors(tmp_path: Path) -> None:
    smith = tokenizer()
    smith.save(tmp_path)
    whole = json.loads((tmp_path / "tokenizer.json").read_text())
    for damage in (
        {"model": {"type": "WordPiece", "vocab": [1, 2]}},
        {"model": {"type": "WordPiece", "vocab": {"a": 0, "b": 2}}},
        {"model": {"type": "WordPiece", "vocab": {"a": "0"}}},
        {"added_tokens": [{"content": "x"}]},
        {"model": 3},
    ):
        (tmp_path / "tokenizer.json").write_text(json.dumps(whole | damage))
        with pytest.raises(DataError, match=re.escape(str(tmp_path))):
            load(tmp_path)


def test_roles_may_share_a_token() -> None:
    specials = SpecialTokens("p", "u", start="s", separator="e", end="e")
    assert specials.tokens() == ["p", "u", "s", "e"]
    assert list(specials.roles()) == ["padding", "unknown", "start", "separator", "end"]


def test_an_absent_role_is_an_error_that_names_the_others() -> None:
    smith = kind("bpe").config().train({"ab": 5, "cd": 5}, vocab_size=160)
    with pytest.raises(BertsmithError, match="no mask token; it has padding, unknown, start"):
        _ = smith.mask_id
