"""Parallel text: readers, errors in one line, filters, shards of pairs that resume."""

from __future__ import annotations

import gzip
import json
import pickle
import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertsmith.data import prepare as data
from bertsmith.data import work_units
from bertsmith.data.parallel import PairOptions, ParallelCorpus, ParallelTexts, check_targets, open_parallel
from bertsmith.data.shards import Shards
from bertsmith.errors import ConfigError, DataError, DataWarning, SkippedWarning
from bertsmith.tokenizers import tokenizer as tokenizers
from bertsmith.tokenizers import unigram
from bertsmith.tokenizers.byte_bpe import Config as ByteBPE

PAIRS = [("the smith", "der Schmied"), ("it is hot", "es ist heiß"), ("쇠가 뜨겁다", "iron is hot")]


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8", newline="")
    return path


def pairs_of(source: Any) -> list[tuple[str, ...]]:
    return [tuple(document.text.split("\n")) for document in source]


def test_two_line_aligned_files(tmp_path: Path) -> None:
    source = write(tmp_path, "a.en", "".join(f"{one}\r\n" for one, _ in PAIRS))
    target = tmp_path / "a.de.gz"
    target.write_bytes(gzip.compress("\n".join(other for _, other in PAIRS).encode()))
    corpus = ParallelCorpus([source, target])
    assert pairs_of(corpus) == PAIRS
    assert pairs_of(corpus) == PAIRS, "a second time"
    assert corpus.bytes_read == corpus.bytes_total
    assert [one.source for one in corpus] == [f"{source}:{line}" for line in (1, 2, 3)]


def test_tables_with_and_without_a_header(tmp_path: Path) -> None:
    rows = "".join(f"{other}\t{one}\n" for one, other in PAIRS)
    named = write(tmp_path, "a.tsv", f"de\ten\n{rows}")
    assert pairs_of(ParallelCorpus([named], pairs=PairOptions(fields=("en", "de")))) == PAIRS
    header = write(tmp_path, "b.tsv", f"target\tsource\n{rows}")
    assert pairs_of(ParallelCorpus([header])) == PAIRS
    bare = write(tmp_path, "c.tsv", rows)
    with pytest.warns(DataWarning, match=r"c.tsv has no columns source and target: its two columns are read as source"):
        assert pairs_of(ParallelCorpus([bare])) == [(other, one) for one, other in PAIRS]
    comma = write(tmp_path, "d.csv", 'source,target\n"a, b","c\nd"\n')
    assert pairs_of(ParallelCorpus([comma])) == [("a, b", "c d")]
    lines = "".join(json.dumps({"source": one, "target": other}) + "\n" for one, other in PAIRS)
    assert pairs_of(ParallelCorpus([write(tmp_path, "e.jsonl", lines), header])) == [*PAIRS, *PAIRS]


def test_columns_by_number_without_a_header(tmp_path: Path) -> None:
    rows = "".join(f"{number}\t{one}\t{other}\tCC-BY\n" for number, (one, other) in enumerate(PAIRS))
    table = write(tmp_path, "a.tsv", rows)
    assert pairs_of(ParallelCorpus([table], pairs=PairOptions(fields=("2", "3")))) == PAIRS
    assert pairs_of(ParallelCorpus([table], pairs=PairOptions(fields=("3", "2")))) == [one[::-1] for one in PAIRS]
    named = write(tmp_path, "b.tsv", f"0\t2\t3\tlicence\n{rows}")
    assert pairs_of(ParallelCorpus([named], pairs=PairOptions(fields=("2", "3")))) == PAIRS, "names of a header"
    for fields in (("2", "5"), ("0", "1")):
        with pytest.raises(DataError, match=rf"a.tsv has 4 columns: --fields {','.join(fields)} must be from 1 to 4"):
            pairs_of(ParallelCorpus([table], pairs=PairOptions(fields=fields)))


def test_data_in_memory() -> None:
    assert pairs_of(open_parallel(PAIRS)) == PAIRS
    rows = [{"en": one, "de": other} for one, other in PAIRS]
    assert pairs_of(open_parallel(rows, pairs=PairOptions(fields=("en", "de")))) == PAIRS
    assert pairs_of(ParallelTexts([("a\nb", None)])) == [("a b", "")]
    for wrong in ("text", ("a",), {"source": "a"}, ("a", 3)):
        with pytest.raises(DataError, match=r"^pair 1 "):
            pairs_of(ParallelTexts([wrong]))


def test_unequal_numbers_of_lines_are_an_error_before_anything_is_written(tmp_path: Path, tokenizer: Path) -> None:
    source, target = write(tmp_path, "a.en", "a\nb\nc\n"), write(tmp_path, "a.de", "a\nb\nc\nd")
    message = rf"^the files do not have the same number of lines \({source} 3 and {target} 4\): line n of one must be"
    with pytest.raises(DataError, match=message):
        data.prepare(ParallelCorpus([source, target]), tmp_path / "shards", tokenizer=tokenizer, workers=1, quiet=True)
    assert not (tmp_path / "shards").exists()


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"a.en": "a\n"}, r"parallel text needs two line-aligned text files.*; found 1 file: .*a.en$"),
        ({"a.en": "a\n", "a.de": "a\n", "a.fr": "a\n"}, r"found 3 files: "),
        ({"a.en": "a\n", "a.tsv": "a\tb\n"}, r"found 2 files: "),
        (
            {"a.tsv": "a\tb\tc\n"},
            r"no field 'source' \(fields: a, b, c\): pass --fields SOURCE,TARGET, or --fields 1,2 for columns",
        ),
        ({"a.tsv": "source\ttarget\na\tb\tc\n"}, r"a.tsv:2: 3 fields, but the header has 2$"),
        (
            {"a.jsonl": '{"source": "a"}\n'},
            r"a.jsonl:1: no field 'target' \(fields: source\): pass --fields SOURCE,TARGET$",
        ),
        ({"a.jsonl": '{"source": "a", "target": 3}\n'}, r"a.jsonl:1: 'target' must be a string, found int$"),
    ],
)
def test_files_that_are_not_parallel_text(tmp_path: Path, files: dict[str, str], message: str) -> None:
    paths = [write(tmp_path, name, text) for name, text in files.items()]
    with pytest.raises(DataError, match=message):
        pairs_of(ParallelCorpus(paths))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_tokens": 0}, "max_tokens=0 must be from 1 to 65,535"),
        ({"max_ratio": 0.5}, "max_ratio=0.5 must be at least 1, or 0 for any"),
        ({"fields": ("a", "a")}, "fields=a,a must name two columns, source and target"),
    ],
)
def test_refused_options(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{message}$"):
        PairOptions(**settings)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("words") / "t"
    texts = open_parallel(PAIRS * 3)
    data.train_tokenizer(texts, folder, settings=ByteBPE(), vocab_size=300, workers=1, quiet=True)
    return folder


def prepare(source: Any, folder: Path, tokenizer: Path, **options: Any) -> dict[str, Any]:
    return data.prepare(source, folder, tokenizer=tokenizer, workers=1, quiet=True, **options)


def decoded(folder: Path, split: str = "train") -> list[tuple[str, str]]:
    shards, words = Shards.open(folder, split), tokenizers.load(folder / "tokenizer")
    result = []
    for part in shards.parts:
        assert np.array_equal(part.document_starts, 2 * np.arange(part.documents + 1)), "a document is a pair"
        starts = part.token_base + part.sentence_starts.astype(np.int64)
        texts = [words.decode(shards.read(one, other - one)) for one, other in pairwise(starts)]
        result += list(zip(texts[::2], texts[1::2], strict=True))
    return result


def test_shards_have_every_pair_once_in_one_of_the_splits(tmp_path: Path, tokenizer: Path) -> None:
    pairs = [(f"{one} {number}", f"{other} {number}") for number in range(40) for one, other in PAIRS]
    index = prepare(open_parallel(pairs), tmp_path / "s", tokenizer, held_out=0.2)
    train, held_out = decoded(tmp_path / "s"), decoded(tmp_path / "s", "held-out")
    assert sorted(train + held_out) == sorted(pairs)
    assert 10 < len(held_out) < 40
    assert index["settings"]["parallel"] == {"fields": None, "max_tokens": 250, "max_ratio": 9.0}
    again = prepare(open_parallel(reversed(pairs)), tmp_path / "again", tokenizer, held_out=0.2)
    assert sorted(decoded(tmp_path / "again", "held-out")) == sorted(held_out), "by the hash of the pair"
    assert again["counts"]["documents_read"] == 120


def test_pairs_that_are_left_out_are_counted_and_named_in_one_line(tmp_path: Path, tokenizer: Path) -> None:
    pairs = [*PAIRS, ("", "leer"), ("empty", " "), ("x " * 40, "y " * 40), ("a", "b c d e f g h")]
    options = PairOptions(max_tokens=30, max_ratio=3.0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        index = prepare(open_parallel(pairs, pairs=options), tmp_path / "s", tokenizer, held_out=0.0)
    (warning,) = [one for one in caught if one.category is SkippedWarning]
    assert str(warning.message) == (
        "4 of 7 pairs were left out: 2 with an empty text, 1 with a text of more than max_tokens=30, "
        "1 with lengths that differ by more than max_ratio=3"
    )
    assert decoded(tmp_path / "s") == PAIRS
    counts = {name: index["counts"][name] for name in ("empty_pairs", "long_pairs", "uneven_pairs")}
    assert counts == {"empty_pairs": 2, "long_pairs": 1, "uneven_pairs": 1}
    kept = prepare(open_parallel(pairs, pairs=PairOptions(max_ratio=0.0)), tmp_path / "all", tokenizer, held_out=0.0)
    assert kept["counts"]["empty_pairs"] == 2
    assert len(decoded(tmp_path / "all")) == 5


def test_pairs_that_are_all_left_out_write_nothing(tmp_path: Path, tokenizer: Path) -> None:
    source, target = write(tmp_path, "a.en", "a\n\nb\n"), write(tmp_path, "a.de", "\nb\n \n")
    message = rf"^no pairs in {source}, {target}: 3 of 3 pairs were left out: 3 with an empty text$"
    with pytest.raises(DataError, match=message):
        prepare(ParallelCorpus([source, target]), tmp_path / "s", tokenizer)
    assert not (tmp_path / "s").exists()
    (tmp_path / "s").mkdir()
    with pytest.raises(DataError, match=message):
        prepare(ParallelCorpus([source, target]), tmp_path / "s", tokenizer)
    assert list((tmp_path / "s").iterdir()) == []
    long = open_parallel(PAIRS, pairs=PairOptions(max_tokens=1))
    with pytest.raises(DataError, match=r"no pairs in the data: 3 of 3 .* 3 with a text of more than max_tokens=1$"):
        prepare(long, tmp_path / "s", tokenizer)
    with pytest.raises(DataError, match="no text in the data"):
        prepare([" ", "\t"], tmp_path / "s", tokenizer)


@pytest.mark.parametrize("lowercase", [False, True])
def test_a_tokenizer_that_changes_target_texts_is_named(lowercase: bool, tmp_path: Path) -> None:
    """Translations would have no capital letters."""
    words = data.train_tokenizer(
        open_parallel(PAIRS * 3),
        tmp_path / "t",
        settings=unigram.Config(lowercase=lowercase),
        vocab_size=120,
        workers=1,
        quiet=True,
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        share = check_targets(words, [f"{one}\n{other}" for one, other in PAIRS])
    messages = [str(one.message) for one in caught]
    assert share == pytest.approx(1 / 3 if lowercase else 0.0)
    assert len(messages) == lowercase
    assert all("changes 33 % of the target texts, such as 'der Schmied' to 'der schmied'" in one for one in messages)


def separate_tokenizers(folder: Path) -> tokenizers.Tokenizer:
    """Source and target with a vocabulary each, loaded from a folder."""
    sides = [[side for side in some for _ in range(3)] for some in zip(*PAIRS, strict=True)]
    how: dict[str, Any] = {"settings": ByteBPE(), "workers": 1, "quiet": True}
    source, target = (
        data.train_tokenizer(texts, folder / str(size), vocab_size=size, **how)
        for texts, size in zip(sides, (270, 280), strict=True)
    )
    source.with_target(target).save(folder / "both")
    return tokenizers.load(folder / "both")


def test_source_and_target_with_a_vocabulary_each(tmp_path: Path) -> None:
    words = separate_tokenizers(tmp_path)
    assert words.target is not None
    assert (words.vocab_size, words.target.vocab_size) == (270, 280)
    assert words.fingerprint != tokenizers.load(tmp_path / "270").fingerprint
    copy = pickle.loads(pickle.dumps(words))
    assert (copy.fingerprint, copy.target.fingerprint) == (words.fingerprint, words.target.fingerprint)
    index = data.prepare(open_parallel(PAIRS), tmp_path / "s", tokenizer=words, held_out=0.0, workers=1, quiet=True)
    assert index["vocab_size"] == 280
    shards, stored = Shards.open(tmp_path / "s"), tokenizers.load(tmp_path / "s" / "tokenizer")
    starts = np.append(0, np.cumsum([len(ids) for pair in PAIRS for ids in sides_of(pair, stored)]))
    ids = [shards.read(one, other - one) for one, other in pairwise(starts)]
    assert all(
        np.array_equal(one, other) for one, other in zip(ids[::2], [sides_of(p, words)[0] for p in PAIRS], strict=True)
    )
    assert [stored.target.decode(each) for each in ids[1::2]] == [target for _, target in PAIRS]


def sides_of(pair: tuple[str, str], words: tokenizers.Tokenizer) -> list[Any]:
    return [one.encode(side).ids for one, side in zip((words, words.target), pair, strict=True)]


def test_tokenizers_of_different_kinds_are_no_pair(tmp_path: Path) -> None:
    words = separate_tokenizers(tmp_path)
    other = data.train_tokenizer(
        open_parallel(PAIRS), tmp_path / "u", settings=unigram.Config(), vocab_size=120, workers=1, quiet=True
    )
    with pytest.raises(
        ConfigError, match="need tokenizers of the same kind and special tokens, found byte_bpe and unigram"
    ):
        words.with_target(other)


def test_an_interrupted_call_resumes_with_the_same_bytes(
    tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work_units, "UNIT_CHARACTERS", 200)
    pairs = [(f"{one} {number}", f"{other} {number}") for number in range(30) for one, other in PAIRS]
    whole = prepare(open_parallel(pairs), tmp_path / "whole", tokenizer, shard_tokens=64)

    def interrupted() -> Any:
        yield from pairs[:60]
        raise KeyboardInterrupt

    corpus = ParallelTexts(interrupted())
    with pytest.raises(KeyboardInterrupt):
        prepare(corpus, tmp_path / "parts", tokenizer, shard_tokens=64)
    assert 2 <= len(list((tmp_path / "parts").glob("train-*.shard"))) < len(whole["files"])
    resumed = prepare(open_parallel(pairs), tmp_path / "parts", tokenizer, shard_tokens=64)
    assert resumed["files"] == whole["files"]
    for entry in whole["files"]:
        assert (tmp_path / "parts" / entry["name"]).read_bytes() == (tmp_path / "whole" / entry["name"]).read_bytes()
