"""The verbs, written out once: train a tokenizer, measure it, prepare shards.

Everything a verb needs comes in as arguments; everything it finds goes out as its result. Printing is the command
line's business, apart from progress.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertsmith.data.corpus import Corpus, ReadOptions, empty_corpus_error
from bertsmith.data.document_hash import Seen
from bertsmith.data.shards import ShardBuilder
from bertsmith.data.work_units import (
    UNIT_CHARACTERS,
    EncodedUnit,
    Unit,
    cached_tokenizer,
    encode_documents,
    encode_unit,
    work_units,
)
from bertsmith.errors import BertsmithError
from bertsmith.system.durable import Disk
from bertsmith.system.progress import Progress
from bertsmith.system.workers import default_workers, ordered_map
from bertsmith.tokenizers import tokenizer as text_tokenizer
from bertsmith.tokenizers.counting import count_unit, merge
from bertsmith.tokenizers.tokenizer import Tokenizer


def train_tokenizer(
    paths: Sequence[str | Path],
    output: str | Path,
    *,
    settings: Any,
    vocab_size: int,
    read_options: ReadOptions | None = None,
    max_words: int = 1_000_000,
    workers: int | None = None,
    limit: int | None = None,
    quiet: bool = False,
) -> Tokenizer:
    """Learns a tokenizer of the kind whose `Config` is given and writes its folder."""
    output = Path(output)
    _must_be_free(output)
    corpus = Corpus(paths, read_options)
    units = work_units(islice(corpus, limit), position=corpus)
    count = partial(_count, splitter=settings.splitter())
    with Progress("counting words", total=corpus.bytes_total, quiet=quiet) as progress:
        counted = ordered_map(count, units, workers=workers or default_workers())
        table = merge(_watched(counted, progress), limit=max_words)
    if not table:
        raise empty_corpus_error(corpus)
    learned: Tokenizer = settings.learn(table, vocab_size=vocab_size)
    learned.save(output)
    return learned


def _count(unit: Unit, splitter: Any) -> tuple[int, dict[str, int]]:
    return unit.bytes_read, count_unit("\n".join(unit.texts), splitter)


def _watched(counted: Iterator[tuple[int, dict[str, int]]], progress: Progress) -> Iterator[dict[str, int]]:
    for bytes_read, table in counted:
        progress.update(bytes_read)
        yield table


def measure_tokenizer(
    folder: str | Path,
    paths: Sequence[str | Path],
    *,
    read_options: ReadOptions | None = None,
    workers: int | None = None,
    limit: int | None = None,
    quiet: bool = False,
) -> dict[str, float]:
    """What a tokenizer makes of a corpus: tokens per word, unknown rate, bytes per token."""
    tokenizer = text_tokenizer.load(folder)
    corpus = Corpus(paths, read_options)
    units = work_units(islice(corpus, limit), position=corpus)
    totals: Counter[str] = Counter()
    used = np.zeros(tokenizer.vocab_size, dtype=np.bool_)
    with Progress("measuring", total=corpus.bytes_total, quiet=quiet) as progress:
        measure = partial(_measure, tokenizer=str(folder), fingerprint=tokenizer.fingerprint)
        for bytes_read, counts, seen in ordered_map(measure, units, workers=workers or default_workers()):
            totals.update(counts)
            used[seen] = True
            progress.update(bytes_read)
    if not totals["words"]:
        raise empty_corpus_error(corpus)
    tokens = max(totals["tokens"], 1)
    return {
        **totals,
        "vocab_size": tokenizer.vocab_size,
        "tokens_per_word": totals["tokens"] / totals["words"],
        "unknown_rate": totals["unknown"] / tokens,
        "bytes_per_token": totals["bytes"] / tokens,
        "vocabulary_used": float(used.mean()),
    }


def prepare(
    paths: Sequence[str | Path],
    output: str | Path,
    *,
    tokenizer: str | Path,
    read_options: ReadOptions | None = None,
    held_out: float = 0.01,
    unique: bool = False,
    workers: int | None = None,
    engine: str = "local",
    shard_tokens: int = 2**24,
    limit: int | None = None,
    quiet: bool = False,
    disk: Disk | None = None,
) -> dict[str, Any]:
    """Writes a corpus as shards and returns their index; an interrupted call goes on where it was."""
    loaded = text_tokenizer.load(tokenizer)
    corpus = Corpus(paths, read_options)
    units = work_units(islice(corpus, limit), position=corpus)
    first = next(units, None)
    if first is None:
        raise empty_corpus_error(corpus)
    settings = {
        "files": {str(path): path.stat().st_size for path in corpus.files},
        "reading": _read_settings(corpus.options),
        "held_out": held_out,
        "unique": unique,
        "limit": limit,
        "unit_characters": UNIT_CHARACTERS,
    }
    with (
        ShardBuilder(
            output,
            tokenizer_files=loaded.files(),
            fingerprint=loaded.fingerprint,
            vocab_size=loaded.vocab_size,
            settings=settings,
            shard_tokens=shard_tokens,
            disk=disk,
        ) as builder,
        Progress("preparing", total=corpus.bytes_total, quiet=quiet) as progress,
    ):
        encode = partial(
            encode_unit,
            tokenizer=str(Path(output, "tokenizer")),
            fingerprint=loaded.fingerprint,
            held_out=held_out,
            skip=builder.units_done,
        )
        every = _with_first(first, units)
        # finished units are read again, but only their hashes are wanted, and those only for finding duplicates
        wanted = every if unique else (unit for unit in every if unit.number >= builder.units_done)
        encoded = ordered_map(encode, wanted, workers=workers or default_workers(), engine=engine)
        _fill(builder, encoded, unique=unique, progress=progress)
        return builder.finish(cut_documents=corpus.split_documents)


def _read_settings(options: ReadOptions) -> dict[str, Any]:
    """The options as the index on disk stores them."""
    return {
        "layout": options.format,
        "field": options.field,
        "encoding": options.encoding,
        "errors": options.errors,
        "longest": options.max_characters,
    }


def preview(
    paths: Sequence[str | Path],
    *,
    tokenizer: str | Path,
    read_options: ReadOptions | None = None,
    sample: int = 4 * UNIT_CHARACTERS,
) -> dict[str, Any]:
    """What `prepare` would find and write, judged by the first documents; writes nothing."""
    loaded = text_tokenizer.load(tokenizer)
    corpus = Corpus(paths, read_options)
    texts: list[str] = []
    size = 0
    for document in corpus:
        texts.append(document.text)
        size += len(document.text)
        if size >= sample:
            break
    if not texts:
        raise empty_corpus_error(corpus)
    pieces = encode_documents(texts, loaded)
    share = corpus.bytes_read / corpus.bytes_total if size >= sample else 1.0
    return {
        "files": len(corpus.files),
        "corpus_bytes": corpus.bytes_total,
        "documents_tried": len(texts),
        "tokens_expected": round(len(pieces.tokens) / share),
        "shards_expected_bytes": round(len(pieces.tokens) * 2.2 / 2 * loaded.id_type.itemsize / share),
        "unknown_rate": float(np.mean(pieces.tokens == loaded.unknown_id)) if len(pieces.tokens) else 0.0,
        "tokenizer": loaded.fingerprint,
    }


def _fill(builder: ShardBuilder, encoded: Iterator[EncodedUnit], *, unique: bool, progress: Progress) -> None:
    seen = Seen()
    documents = 0
    for unit in encoded:
        keep = np.array([not unique or seen.add(value) for value in unit.hashes.tolist()], dtype=np.bool_)
        if unit.pieces is None:
            progress.resume_from(unit.bytes_read)
            continue
        if not documents and unit.number:
            progress.resume_from(unit.bytes_read)
        counts = {
            "documents_read": len(keep),
            "duplicates": int(np.sum(~keep)),
            "characters": unit.characters,
        }
        keep &= unit.pieces.document_sentences > 0
        pieces = {"train": unit.select(keep & ~unit.held_out), "held-out": unit.select(keep & unit.held_out)}
        builder.add(unit.number, pieces, counts)
        documents += len(keep)
        progress.update(unit.bytes_read, documents=documents)


def _with_first(first: Unit, rest: Iterator[Unit]) -> Iterator[Unit]:
    yield first
    yield from rest


def _measure(unit: Unit, tokenizer: str, fingerprint: str) -> tuple[int, dict[str, int], NDArray[np.integer[Any]]]:
    loaded = cached_tokenizer(tokenizer, fingerprint)
    tokens, _ = loaded.encode_ids(unit.texts)
    counts = {
        "documents": len(unit.texts),
        "words": sum(len(text.split()) for text in unit.texts),
        "bytes": sum(len(text.encode()) for text in unit.texts),
        "tokens": len(tokens),
        "unknown": int(np.count_nonzero(tokens == loaded.unknown_id)),
    }
    return unit.bytes_read, counts, np.unique(tokens)


def _must_be_free(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BertsmithError(f"{folder} is already there: choose another -o, or remove it first")
