"""Tokenizer folders of other makers: ids, frames and segments equal those of transformers' AutoTokenizer.

Every file that may declare a setting does so in some case; the model_type of config.json matters as in transformers.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from bertsmith.errors import DataError
from bertsmith.tokenizers import tokenizer as ours
from bertsmith.tokenizers.batch_encoding import BatchEncoder
from bertsmith.tokenizers.pipeline import Pipeline

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()

TOKENS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "The",
    "the",
    "a",
    "A",
    "café",
    "cafe",
    "서울",
    "北",
    "##s",
    "(",
    "-",
    "[C]",
    "[D]",
]
TEXTS = [
    "The cafés, A the",
    "café [X] x",
    "서울 北京 北",
    "",
    " a  \t(A)-a\n the",
    "THE CAFÉ",
    "Ünïcode ﬁ ½ İ",
    "MEEPQSDPSVEPPLS",
    "a" * 120,
]
BERT = {"tokenizer_class": "BertTokenizer"}
GENERIC = {"tokenizer_class": "PreTrainedTokenizerFast"}
FILES = dict[str, Any]


def write(folder: Path, files: FILES, *, model_type: str = "bert") -> Path:
    folder.mkdir(exist_ok=True)
    for name, value in {"config.json": {"model_type": model_type}, **files}.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def compare(folder: Path, tmp_path: Path) -> ours.Tokenizer:
    """Single texts and pairs, as opened and as saved again, encoded alone, in batches and for shards."""
    tokenizer = ours.load(folder)
    tokenizer.save(tmp_path / "saved")
    (tmp_path / "saved" / "config.json").write_bytes((folder / "config.json").read_bytes())
    for theirs in map(transformers.AutoTokenizer.from_pretrained, (folder, tmp_path / "saved")):
        for text, other in zip(TEXTS, reversed(TEXTS), strict=True):
            first, second = tokenizer.encode(text), tokenizer.encode(other)
            expected = theirs(text, return_token_type_ids=True)
            assert tokenizer.frame(first, max_length=512).ids.tolist() == expected["input_ids"], text
            if not other:  # transformers takes an empty second text for none
                continue
            expected = theirs(text, other, return_token_type_ids=True)
            row = tokenizer.frame(first, second, max_length=512)
            assert row.ids.tolist() == expected["input_ids"]
            assert row.segment_ids.tolist() == expected["token_type_ids"]
    expected = [number for text in TEXTS for number in tokenizer.encode(text).ids.tolist()]
    assert tokenizer.encode_ids(TEXTS)[0].tolist() == expected
    assert BatchEncoder(tokenizer)(TEXTS).ids.tolist() == expected
    assert pickle.loads(pickle.dumps(tokenizer)).encode_ids(TEXTS)[0].tolist() == expected
    assert ours.load(tmp_path / "saved").fingerprint == tokenizer.fingerprint
    return tokenizer


def definition(**changes: Any) -> str:
    """A tokenizer.json with BERT's rules, cased."""
    backend = Tokenizer(models.WordPiece({token: n for n, token in enumerate(TOKENS)}, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=False)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    for name, value in changes.items():
        setattr(backend, name, value)
    return str(backend.to_str())


VOCABULARY = "".join(f"{token}\n" for token in TOKENS)
WORDPIECE: dict[str, tuple[str, FILES]] = {
    "no class": ("bert", {"vocab.txt": VOCABULARY, "tokenizer_config.json": {"do_lower_case": False}}),
    "class in config.json": (
        "roberta",
        {
            "vocab.txt": VOCABULARY,
            "tokenizer_config.json": {"do_lower_case": False},
            "config.json": {"model_type": "roberta", **BERT},
        },
    ),
    "accents": ("electra", {"vocab.txt": VOCABULARY, "tokenizer_config.json": {"strip_accents": False}}),
    "ideographs": ("bert", {"vocab.txt": VOCABULARY, "tokenizer_config.json": {"tokenize_chinese_chars": False}}),
    "max_len": ("bert", {"vocab.txt": VOCABULARY, "tokenizer_config.json": {"max_len": 512}}),
    "silent config": ("bert", {"vocab.txt": VOCABULARY, "tokenizer_config.json": BERT}),
    "json and no config": ("bert", {"tokenizer.json": definition()}),
    "json and a silent class": ("bert", {"tokenizer.json": definition(), "tokenizer_config.json": BERT}),
    "json and a generic class": ("bert", {"tokenizer.json": definition(), "tokenizer_config.json": GENERIC}),
    "json against a generic setting": (
        "bert",
        {"tokenizer.json": definition(), "tokenizer_config.json": GENERIC | {"do_lower_case": True}},
    ),
    "json of an unknown class": (
        "bert",
        {"tokenizer.json": definition(), "tokenizer_config.json": {"tokenizer_class": "MyTokenizer"}},
    ),
    "json without a frame": (
        "bert",
        {"tokenizer.json": definition(post_processor=None), "tokenizer_config.json": BERT},
    ),
    "no effect": (
        "bert",
        {"vocab.txt": VOCABULARY, "tokenizer_config.json": {"do_basic_tokenize": False, "never_split": ["[X]"]}},
    ),
    "map before config": (
        "bert",
        {
            "vocab.txt": VOCABULARY,
            "tokenizer_config.json": {"cls_token": "[C]"},
            "special_tokens_map.json": {"cls_token": "[D]", "mask_token": {"content": "[MASK]", "lstrip": True}},
        },
    ),
    "added tokens": (
        "bert",
        {
            "vocab.txt": VOCABULARY,
            "tokenizer_config.json": {"do_lower_case": False},
            "added_tokens.json": {"x": len(TOKENS), "cafés": len(TOKENS) + 1},
        },
    ),
}


@pytest.mark.parametrize("case", WORDPIECE)
def test_settings_of_wordpiece_folders(case: str, tmp_path: Path) -> None:
    model_type, files = WORDPIECE[case]
    tokenizer = compare(write(tmp_path / "folder", files, model_type=model_type), tmp_path)
    assert tokenizer.kind == "wordpiece"
    if case == "no effect":
        assert sum("is ignored, as by transformers' fast tokenizers" in note for note in tokenizer.notes) == 2
    if case in ("silent config", "json and no config", "json and a silent class"):
        assert any("--cased" in note for note in tokenizer.notes)


@pytest.mark.parametrize(
    ("changes", "kind", "note"),
    [
        ({"post_processor": None}, "wordpiece", "adds none"),
        ({"normalizer": normalizers.BertNormalizer(lowercase=True)}, "wordpiece", "replace the normalizer"),
        ({"normalizer": normalizers.NFC()}, "tokenizer.json", "its normalizer is not that of BertTokenizer"),
        ({"pre_tokenizer": pre_tokenizers.Whitespace()}, "tokenizer.json", "its pre_tokenizer is not that of Bert"),
    ],
)
def test_notes_where_versions_of_transformers_differ(changes: FILES, kind: str, note: str, tmp_path: Path) -> None:
    settings = BERT | {"do_lower_case": False}
    files = {"tokenizer.json": definition(**changes), "tokenizer_config.json": settings}
    tokenizer = ours.load(write(tmp_path / "folder", files))
    assert tokenizer.kind == kind
    assert any(note in one for one in tokenizer.notes), tokenizer.notes


def test_extra_special_tokens_are_parsed(tmp_path: Path) -> None:
    settings = {"do_lower_case": False, "additional_special_tokens": ["[X]", "a"]}
    folder = write(tmp_path / "folder", {"vocab.txt": VOCABULARY, "tokenizer_config.json": settings})
    tokenizer, theirs = ours.load(folder), transformers.AutoTokenizer.from_pretrained(folder)
    for text in ("The [X] a café", "[X]a"):
        expected = theirs(text, add_special_tokens=False)["input_ids"]
        assert tokenizer.encode(text, parse_special_tokens=True).ids.tolist() == expected


# --- any tokenizer.json

SPECIALS = [("[CLS]", 2), ("[SEP]", 3)]
SINGLE, PAIR = "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1"


def trained(model: Any, trainer: type[Any], **parts: Any) -> Tokenizer:
    backend = Tokenizer(model)
    for name, value in parts.items():
        setattr(backend, name, value)
    names = TOKENS[:5]
    options = {"unk_token": "[UNK]"} if trainer is trainers.UnigramTrainer else {}
    backend.train_from_iterator(
        [*TEXTS] * 3, trainer(vocab_size=400, special_tokens=names, show_progress=False, **options)
    )
    return backend


def modernbert() -> Tokenizer:
    steps: dict[str, Any] = {"normalizer": normalizers.NFC(), "decoder": decoders.ByteLevel()}
    backend = trained(
        models.BPE(), trainers.BpeTrainer, pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=False), **steps
    )
    backend.post_processor = processors.TemplateProcessing(single=SINGLE, pair=PAIR, special_tokens=SPECIALS)
    backend.add_special_tokens([AddedToken("[MASK]", lstrip=True, special=True)])
    backend.add_tokens(["(A)"])
    return backend


def unigram() -> Tokenizer:
    backend = trained(models.Unigram(), trainers.UnigramTrainer, pre_tokenizer=pre_tokenizers.Metaspace())
    backend.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    backend.post_processor = processors.RobertaProcessing(("[SEP]", 3), ("[CLS]", 2))
    return backend


def protein() -> Tokenizer:
    ids = {token: number for number, token in enumerate([*TOKENS[:5], *"LAGVSERTIDPKQNFYMHWCXBUZO"])}
    backend = Tokenizer(models.WordLevel(ids, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    backend.post_processor = processors.TemplateProcessing(single=SINGLE, pair=PAIR, special_tokens=SPECIALS)
    return backend


def characters_without_a_frame() -> Tokenizer:
    return trained(models.BPE(unk_token="[UNK]"), trainers.BpeTrainer, pre_tokenizer=pre_tokenizers.Whitespace())


def first_word_prefix() -> Tokenizer:
    backend = trained(
        models.BPE(unk_token="[UNK]"),
        trainers.BpeTrainer,
        pre_tokenizer=pre_tokenizers.Metaspace(prepend_scheme="first"),
    )
    template = processors.TemplateProcessing(single=SINGLE, pair=PAIR, special_tokens=SPECIALS)
    backend.post_processor = processors.Sequence([processors.ByteLevel(), template])
    backend.enable_truncation(8)
    backend.enable_padding(length=16)
    return backend


PIPELINES: list[Callable[[], Tokenizer]] = [modernbert, unigram, protein, characters_without_a_frame, first_word_prefix]


@pytest.mark.parametrize("build", PIPELINES)
@pytest.mark.parametrize("named", [True, False])
def test_any_pipeline_is_run_as_it_is(build: Callable[[], Tokenizer], named: bool, tmp_path: Path) -> None:
    names = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    files = {"tokenizer.json": build().to_str(), "tokenizer_config.json": GENERIC | (names if named else {})}
    tokenizer = compare(write(tmp_path / "folder", files, model_type="modernbert"), tmp_path)
    assert isinstance(tokenizer, Pipeline)
    assert (tokenizer.padding_id, tokenizer.unknown_id, tokenizer.mask_id) == (0, 1, 4)


# --- refusals


@pytest.mark.parametrize(
    ("model_type", "files", "words"),
    [
        ("roformer", {"vocab.txt": VOCABULARY}, ("RoFormerTokenizer", "jieba")),
        ("roformer", {"tokenizer.json": definition()}, ("RoFormerTokenizer", "jieba")),
        (
            "bert",
            {"vocab.txt": VOCABULARY, "tokenizer_config.json": {"tokenizer_class": "KoBertTokenizer"}},
            ("KoBertTokenizer",),
        ),
        (
            "bert",
            {
                "tokenizer.json": definition(),
                "tokenizer_config.json": {
                    "tokenizer_class": "KoBertTokenizer",
                    "auto_map": {"AutoTokenizer": ["tokenization.KoBertTokenizer", None]},
                },
            },
            ("KoBertTokenizer", "auto_map"),
        ),
        ("roberta", {"vocab.txt": VOCABULARY}, ("RobertaTokenizer", "vocab.json")),
        (
            "bert",
            {"vocab.txt": VOCABULARY, "tokenizer_config.json": {"do_lower_case": "no"}},
            ("do_lower_case", "true or false"),
        ),
    ],
)
def test_tokenizers_with_other_rules_are_refused(
    model_type: str, files: FILES, words: tuple[str, ...], tmp_path: Path
) -> None:
    with pytest.raises(DataError) as error:
        ours.load(write(tmp_path / "folder", files, model_type=model_type))
    assert "\n" not in str(error.value)
    assert all(word in str(error.value) for word in (*words, str(tmp_path))), str(error.value)
