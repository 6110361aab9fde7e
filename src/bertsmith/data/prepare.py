"""Train a tokenizer on a corpus, measure it, and write the corpus as shards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertsmith.data.corpus import Corpus, ReadOptions, empty_corpus_error
from bertsmith.data.shards import ShardBuilder
from bertsmith.data.work_units import (
    UNIT_CHARACTERS,
    EncodedUnit,
    HashSet,
    WorkUnit,
    cached_tokenizer,
    encode_documents,
    encode_unit,
    work_units,
)
from bertsmith.errors import BertsmithError
from bertsmith.system.durable import Disk
from bertsmith.system.progress import Progress
from bertsmith.system.workers import default_workers, ordered_map
from bertsmith.tokenizers import tokenizer as tokenizers
from bertsmith.tokenizers.tokenizer import Tokenizer
from bertsmith.tokenizers.training import count_text, merge_counts


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
    """Trains the tokenizer whose `Config` is `settings`, and writes its folder."""
    output = Path(output)
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise BertsmithError(f"{output} already exists: choose another -o, or remove it first")
    corpus = Corpus(paths, read_options)
    units = work_units(islice(corpus, limit), position=corpus)
    count = partial(_count_words, splitter=settings.word_splitter())
    with Progress("counting words", total=corpus.bytes_total, quiet=quiet) as progress:
        counted = ordered_map(count, units, workers=workers or default_workers())
        table = merge_counts(_with_progress(counted, progress), limit=max_words)
    if not table:
        raise empty_corpus_error(corpus)
    tokenizer: Tokenizer = settings.train(table, vocab_size=vocab_size)
    tokenizer.save(output)
    return tokenizer


def _count_words(unit: WorkUnit, splitter: Any) -> tuple[int, dict[str, int]]:
    return unit.bytes_read, count_text("\n".join(unit.texts), splitter)


def _with_progress(counted: Iterator[tuple[int, dict[str, int]]], progress: Progress) -> Iterator[dict[str, int]]:
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
    """Statistics of a tokenizer on a corpus: tokens per word, rate of unknown tokens, bytes per token."""
    tokenizer = tokenizers.load(folder)
    corpus = Corpus(paths, read_options)
    units = work_units(islice(corpus, limit), position=corpus)
    totals: Counter[str] = Counter()
    used = np.zeros(tokenizer.vocab_size, dtype=np.bool_)
    with Progress("measuring", total=corpus.bytes_total, quiet=quiet) as progress:
        measure = partial(_measure_unit, tokenizer=str(folder), fingerprint=tokenizer.fingerprint)
        for bytes_read, counts, tokens in ordered_map(measure, units, workers=workers or default_workers()):
            totals.update(counts)
            used[tokens] = True
            progress.update(bytes_read)
    if not totals["words"]:
        raise empty_corpus_error(corpus)
    token_count = max(totals["tokens"], 1)
    return {
        **totals,
        "vocab_size": tokenizer.vocab_size,
        "tokens_per_word": totals["tokens"] / totals["words"],
        "unknown_rate": totals["unknown"] / token_count,
        "bytes_per_token": totals["bytes"] / token_count,
        "vocabulary_used": float(used.mean()),
    }


def _measure_unit(
    unit: WorkUnit, tokenizer: str, fingerprint: str
) -> tuple[int, dict[str, int], NDArray[np.integer[Any]]]:
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
    """Writes a corpus as shards and returns their index; the same call resumes after an interruption."""
    loaded = tokenizers.load(tokenizer)
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
        all_units = chain([first], units)
        # of finished units only the hashes are needed, and these only to find duplicates
        needed = all_units if unique else (unit for unit in all_units if unit.number >= builder.units_done)
        encoded = ordered_map(encode, needed, workers=workers or default_workers(), engine=engine)
        _add_units(builder, encoded, unique=unique, progress=progress)
        return builder.finish(cut_documents=corpus.split_documents)


def _read_settings(options: ReadOptions) -> dict[str, Any]:
    """The options under their names in the index on disk."""
    return {
        "layout": options.format,
        "field": options.field,
        "encoding": options.encoding,
        "errors": options.errors,
        "longest": options.max_characters,
    }


def _add_units(builder: ShardBuilder, encoded: Iterator[EncodedUnit], *, unique: bool, progress: Progress) -> None:
    seen = HashSet()
    documents = 0
    for unit in encoded:
        keep = np.array([not unique or seen.add(value) for value in unit.hashes.tolist()], dtype=np.bool_)
        if unit.documents is None:
            progress.resume_from(unit.bytes_read)
            continue
        if not documents and unit.number:
            progress.resume_from(unit.bytes_read)
        counts = {"documents_read": len(keep), "duplicates": int(np.sum(~keep)), "characters": unit.characters}
        keep &= unit.documents.document_sentences > 0
        splits = {"train": unit.select(keep & ~unit.held_out), "held-out": unit.select(keep & unit.held_out)}
        builder.add(unit.number, splits, counts)
        documents += len(keep)
        progress.update(unit.bytes_read, documents=documents)


def preview(
    paths: Sequence[str | Path],
    *,
    tokenizer: str | Path,
    read_options: ReadOptions | None = None,
    sample: int = 4 * UNIT_CHARACTERS,
) -> dict[str, Any]:
    """An estimate of what `prepare` would write, from the first `sample` characters; writes nothing."""
    loaded = tokenizers.load(tokenizer)
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
    tokens = encode_documents(texts, loaded).tokens
    fraction = corpus.bytes_read / corpus.bytes_total if size >= sample else 1.0
    return {
        "files": len(corpus.files),
        "corpus_bytes": corpus.bytes_total,
        "documents_tried": len(texts),
        "tokens_expected": round(len(tokens) / fraction),
        "shards_expected_bytes": round(len(tokens) * 2.2 / 2 * loaded.id_dtype.itemsize / fraction),
        "unknown_rate": float(np.mean(tokens == loaded.unknown_id)) if len(tokens) else 0.0,
        "tokenizer": loaded.fingerprint,
    }
