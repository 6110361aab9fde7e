"""Train a tokenizer on a corpus, measure it, and write the corpus as shards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertsmith.data import work_units
from bertsmith.data.corpus import Corpus, ReadOptions, empty_corpus_error
from bertsmith.data.in_memory import open_corpus
from bertsmith.data.parallel import PairOptions, check_targets, left_out_text, warn_of_left_out
from bertsmith.data.shards import ShardBuilder, finished_index
from bertsmith.data.shards.folder import TOKENIZER
from bertsmith.data.shards.unknown_words import SPELLING
from bertsmith.data.text_files import printable
from bertsmith.data.tokenizer_training import TokenizerTraining, map_texts, prepare_tokenizer
from bertsmith.errors import BertsmithError, DataError
from bertsmith.system.durable import Disk
from bertsmith.system.progress import Progress
from bertsmith.system.workers import default_workers, ordered_map
from bertsmith.tokenizers import tokenizer as tokenizers
from bertsmith.tokenizers.folder import CONFIG, TOKENIZER_FILES
from bertsmith.tokenizers.tokenizer import Tokenizer
from bertsmith.tokenizers.training import MAX_WORDS
from bertsmith.tokenizers.unknown_words import check_unknown_words


def train_tokenizer(
    source: Any,
    output: str | Path,
    *,
    settings: Any,
    vocab_size: int,
    read_options: ReadOptions | None = None,
    max_words: int = MAX_WORDS,
    workers: int | None = None,
    limit: int | None = None,
    overwrite: bool = False,
    quiet: bool = False,
) -> Tokenizer:
    """Trains the tokenizer whose `Config` is `settings`, and writes its folder; `overwrite` replaces a tokenizer there.

    `source`: see `open_corpus`.
    """
    output = Path(output)
    _check_output(output, overwrite=overwrite)
    training = TokenizerTraining(settings, vocab_size, max_words)
    tokenizer = training.train(open_corpus(source, read_options), limit=limit, workers=workers, quiet=quiet)
    tokenizer.save(output)
    for old in set(TOKENIZER_FILES) - tokenizer.files().keys():  # of the tokenizer that was replaced
        if (output / old).exists():
            Disk().remove(output / old)
    return tokenizer


def _check_output(folder: Path, *, overwrite: bool) -> None:
    """Raises where a new tokenizer would be mixed with other files; only a tokenizer may be replaced."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not overwrite:
        raise BertsmithError(f"{folder} already exists: choose another -o, or pass --overwrite to replace a tokenizer")
    found = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    if CONFIG not in found or found - {*TOKENIZER_FILES}:
        others = sorted(found - {*TOKENIZER_FILES})
        reason = f"has other files than a tokenizer ({others[0]})" if others else "is not a tokenizer"
        raise BertsmithError(f"{folder} {reason}: --overwrite replaces only a tokenizer; choose another -o")
    with Disk().lock(folder):  # an error where another process uses it
        return


def measure_tokenizer(
    folder: str | Path,
    source: Any,
    *,
    read_options: ReadOptions | None = None,
    workers: int | None = None,
    limit: int | None = None,
    quiet: bool = False,
) -> dict[str, float]:
    """Statistics of a tokenizer on a corpus: tokens per word, rate of unknown tokens, bytes per token."""
    tokenizer = tokenizers.load(folder)
    corpus = open_corpus(source, read_options)
    totals: Counter[str] = Counter()
    used = np.zeros(tokenizer.vocab_size, dtype=np.bool_)
    measure = partial(_measure_texts, tokenizer=str(folder), fingerprint=tokenizer.fingerprint)
    for counts, tokens in map_texts(measure, corpus, title="measuring", limit=limit, workers=workers, quiet=quiet):
        totals.update(counts)
        used[tokens] = True
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


def _measure_texts(
    texts: list[str], tokenizer: str, fingerprint: str
) -> tuple[dict[str, int], NDArray[np.integer[Any]]]:
    loaded = work_units.cached_tokenizer(tokenizer, fingerprint)
    tokens, _ = loaded.encode_ids(texts)
    counts = {
        "documents": len(texts),
        "words": sum(len(text.split()) for text in texts),
        "bytes": sum(len(text.encode()) for text in texts),
        "tokens": len(tokens),
        "unknown": int(np.count_nonzero(loaded.is_unknown(tokens))),
    }
    return counts, np.unique(tokens)


def prepare(
    source: Any,
    output: str | Path,
    *,
    tokenizer: str | Path | Tokenizer | TokenizerTraining,
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
    """Writes a corpus as shards; the same call resumes after an interruption.

    If the folder has the finished shards already, nothing is written.

    With `TokenizerTraining` it first trains the tokenizer on the corpus, for pairs one vocabulary for both sides; the
    shards are those of `train_tokenizer` and `prepare`. For pairs with two vocabularies, `tokenizer` is that of the
    source texts, with a `target` (`Tokenizer.with_target`).

    Returns the index, and the share of unknown words of the first documents as `unknown_word_rate`.
    """
    corpus, training = open_corpus(source, read_options), None
    if isinstance(tokenizer, TokenizerTraining):
        training = tokenizer.record()
        how: dict[str, Any] = {"limit": limit, "workers": workers, "quiet": quiet}
        tokenizer = prepare_tokenizer(tokenizer, corpus, Path(output), disk=disk or Disk(), **how)
    loaded = _loaded(tokenizer)
    units = work_units.units_of(corpus, limit=limit)
    first = next(units, None)
    if first is None:
        raise empty_corpus_error(corpus)
    unknown = _check_texts(loaded, first.texts, corpus.pairs)
    settings = {**_corpus_settings(corpus, first.texts), "held_out": held_out, "unique": unique, "limit": limit}
    settings |= {SPELLING: True} if corpus.pairs is None and loaded.spelled_ids is not None else {}
    plan = {"fingerprint": loaded.fingerprint, "shard_tokens": shard_tokens, "settings": settings}
    if finished := finished_index(Path(output), plan):
        return {**finished, "unknown_word_rate": unknown}
    with (
        ShardBuilder(
            output,
            tokenizer_files=loaded.files(),
            fingerprint=loaded.fingerprint,
            vocab_size=max(loaded.vocab_size, 0 if loaded.target is None else loaded.target.vocab_size),
            settings=settings,
            shard_tokens=shard_tokens,
            training=training,
            disk=disk,
        ) as builder,
        Progress("preparing", total=corpus.bytes_total, quiet=quiet) as progress,
    ):
        encode = _encoder(loaded, builder, held_out=held_out, pairs=corpus.pairs)
        all_units = chain([first], units)
        # of finished units only the hashes are needed, and these only to find duplicates
        needed = all_units if unique else (unit for unit in all_units if unit.number >= builder.units_done)
        encoded = ordered_map(encode, needed, workers=workers or default_workers(), engine=engine)
        _add_units(builder, encoded, unique=unique, progress=progress)
        if not builder.documents:
            builder.discard()
            raise _nothing_left(corpus, builder.counts)
        index = builder.finish(cut_documents=corpus.split_documents)
    if corpus.pairs is not None:
        warn_of_left_out(index["counts"], corpus.pairs)
    return {**index, "unknown_word_rate": unknown}


def _nothing_left(corpus: Corpus, counts: dict[str, int]) -> DataError:
    """The error of a corpus whose documents have no tokens, or whose pairs were all left out."""
    if corpus.pairs is None:
        return empty_corpus_error(corpus)
    names = ", ".join(map(printable, corpus.files[:3])) or "the data"
    return DataError(f"no pairs in {names}: {left_out_text(counts, corpus.pairs)}")


def _encoder(
    tokenizer: Tokenizer, builder: ShardBuilder, *, held_out: float, pairs: PairOptions | None
) -> Callable[[work_units.WorkUnit], work_units.EncodedUnit]:
    """Encodes units with the tokenizer that is stored with the shards; picklable, for worker processes."""
    return partial(
        work_units.encode_unit,
        tokenizer=str(builder.folder / TOKENIZER),
        fingerprint=tokenizer.fingerprint,
        held_out=held_out,
        skip=builder.units_done,
        pairs=pairs,
    )


def _check_texts(tokenizer: Tokenizer, texts: list[str], pairs: PairOptions | None) -> float:
    """The share of unknown words; warnings of these, and of target texts that the tokenizer changes."""
    if pairs is None:
        return check_unknown_words(tokenizer, texts)
    check_targets(tokenizer, texts)
    if tokenizer.target is None:
        return check_unknown_words(tokenizer, texts)
    sides = zip(*(text.split("\n") for text in texts), strict=True)
    return max(check_unknown_words(one, side) for one, side in zip((tokenizer, tokenizer.target), sides, strict=True))


def _corpus_settings(corpus: Corpus, first: list[str]) -> dict[str, Any]:
    """What the units of a corpus depend on; `first` are the texts of the first one."""
    return {
        "files": {str(path): path.stat().st_size for path in corpus.files},
        **({} if corpus.files else {"texts": _digest(first)}),
        "reading": _read_settings(corpus.options),
        "unit_characters": work_units.UNIT_CHARACTERS,
        **({} if corpus.pairs is None else {"parallel": asdict(corpus.pairs)}),
    }


def _loaded(tokenizer: str | Path | Tokenizer) -> Tokenizer:
    return tokenizer if isinstance(tokenizer, Tokenizer) else tokenizers.load(tokenizer)


def _digest(texts: list[str]) -> str:
    return blake2b("\0".join(texts).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _read_settings(options: ReadOptions) -> dict[str, Any]:
    """The options under their names in the index on disk."""
    names = {"format": "layout", "max_characters": "longest"}
    return {names.get(name, name): value for name, value in asdict(options).items()}


def _add_units(
    builder: ShardBuilder, encoded: Iterator[work_units.EncodedUnit], *, unique: bool, progress: Progress
) -> None:
    seen = work_units.HashSet()
    documents = 0
    for unit in encoded:
        keep = np.array([not unique or seen.add(value) for value in unit.hashes.tolist()], dtype=np.bool_)
        if unit.documents is None:
            progress.resume_from(unit.bytes_read)
            continue
        if not documents and unit.number:
            progress.resume_from(unit.bytes_read)
        counts = {"documents_read": len(keep), "duplicates": int(np.sum(~keep)), "characters": unit.characters}
        counts |= unit.left_out
        keep &= unit.documents.document_sentences > 0
        splits = {"train": unit.select(keep & ~unit.held_out), "held-out": unit.select(keep & unit.held_out)}
        builder.add(unit.number, splits, counts)
        documents += len(keep)
        progress.update(unit.bytes_read, documents=documents)


def preview(
    source: Any,
    *,
    tokenizer: str | Path | Tokenizer | TokenizerTraining,
    read_options: ReadOptions | None = None,
    sample: int = 4 * work_units.UNIT_CHARACTERS,
) -> dict[str, Any]:
    """An estimate of what `prepare` would write, from the first `sample` characters; writes nothing.

    With `TokenizerTraining` the tokenizer is trained on these characters.
    """
    corpus = open_corpus(source, read_options)
    unit = next(work_units.units_of(corpus, characters=sample), None)
    if unit is None:
        raise empty_corpus_error(corpus)
    if isinstance(tokenizer, TokenizerTraining):
        loaded = tokenizer.train_on_sample(unit.texts, corpus)
    else:
        loaded = _loaded(tokenizer)
    tokens = work_units.encode_texts(unit.texts, loaded, corpus.pairs)[0].tokens
    is_unknown = loaded.is_unknown(tokens) | (tokens >= loaded.vocab_size)
    fraction = unit.bytes_read / corpus.bytes_total if unit.characters >= sample else 1.0
    return {
        "files": len(corpus.files),
        "corpus_bytes": corpus.bytes_total,
        "documents_tried": len(unit.texts),
        "tokens_expected": round(len(tokens) / fraction),
        "shards_expected_bytes": round(len(tokens) * 2.2 / 2 * tokens.dtype.itemsize / fraction),
        "unknown_rate": float(np.mean(is_unknown)) if len(tokens) else 0.0,
        "unknown_word_rate": check_unknown_words(loaded, unit.texts),
        "tokenizer": None if isinstance(tokenizer, TokenizerTraining) else loaded.fingerprint,
    }
