"""From text to tokens: `train_tokenizer`, `load_tokenizer` and `prepare`."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypedDict, Unpack

from bertsmith.api.settings import PathLike, python_errors
from bertsmith.errors import ConfigError

if TYPE_CHECKING:
    from bertsmith.data.tokenizer_training import TokenizerTraining
    from bertsmith.tokenizers.tokenizer import Tokenizer

TokenizerKind = Literal["wordpiece", "byte_bpe", "bpe", "unigram", "words", "characters"]


class ArrowData(Protocol):
    """A table or array of pyarrow."""

    def to_pylist(self) -> list[Any]: ...


Corpus = PathLike | Iterable[Any] | ArrowData


class TrainingSettings(TypedDict, total=False):
    """How `prepare` trains a tokenizer: the settings of `train_tokenizer`."""

    kind: TokenizerKind
    vocab_size: int
    cased: bool
    settings: dict[str, Any] | None


@dataclass(frozen=True)
class Shards(os.PathLike[str]):
    """A tokenized corpus on disk."""

    folder: Path
    documents: int
    tokens: int  # of train; held-out documents are not counted
    held_out_tokens: int
    bytes: int
    unknown_word_rate: float  # share of the words of the first documents that the tokenizer does not know

    def __fspath__(self) -> str:
        return str(self.folder)


@python_errors
def train_tokenizer(
    corpus: Corpus,
    output: PathLike,
    *,
    vocab_size: int = 30_522,
    kind: TokenizerKind = "wordpiece",
    cased: bool = False,
    settings: dict[str, Any] | None = None,
    field: str = "text",
    parallel: bool | dict[str, Any] = False,
    limit: int | None = None,
    workers: int | None = None,
    overwrite: bool = False,
    quiet: bool = False,
) -> Tokenizer:
    """Trains a tokenizer and saves it in a folder. The result does not depend on the number of workers.

    Args:
        corpus: Files, folders or glob patterns (txt, jsonl, csv, tsv, parquet, WikiExtractor; also compressed), or
            documents in memory: an iterable of strings, a pandas Series or DataFrame, an Arrow table, a dataset.
        output: The folder of the tokenizer.
        vocab_size: Size of the vocabulary, special tokens included.
        kind: `wordpiece` (BERT), `byte_bpe` (RoBERTa), `bpe` (GPT-1), `unigram` (ALBERT), `words` or `characters`.
        cased: Keep upper case and accents.
        settings: Further settings of this kind, such as `{"min_count": 3}`.
        field: Column or key of the text, in tables.
        parallel: The data are pairs of a source and a target text: two line-aligned files, tables with two columns, or
            (source, target) tuples. A dict has settings: `fields` (the two columns), `max_tokens` and `max_ratio`.
        limit: Read only the first documents.
        workers: Processes; by default one per core where the corpus is large enough.
        overwrite: Replace a tokenizer in the folder.
        quiet: Do not show progress.

    Example:
        >>> import bertsmith as bs
        >>> tokenizer = bs.train_tokenizer(["corpus/"], "tokenizer", vocab_size=500)
        >>> tokenizer.vocab_size
        500
        >>> tokenizer.encode("the heat").ids.tolist() == bs.load_tokenizer("tokenizer").encode("the heat").ids.tolist()
        True
    """
    from bertsmith.data import prepare as data
    from bertsmith.data.corpus import ReadOptions

    return data.train_tokenizer(
        _pairs(corpus, field, parallel) if parallel else corpus,
        Path(output),
        settings=_training(kind=kind, cased=cased, settings=settings).settings,
        vocab_size=vocab_size,
        read_options=ReadOptions(field=field),
        limit=limit,
        workers=workers,
        overwrite=overwrite,
        quiet=quiet,
    )


@python_errors
def load_tokenizer(folder: PathLike) -> Tokenizer:
    """Loads the tokenizer of a tokenizer folder, a model folder or a run.

    Args:
        folder: The folder.

    Example:
        >>> import bertsmith as bs
        >>> tokenizer = bs.load_tokenizer("tokenizer")
        >>> tokenizer.decode(tokenizer.encode("heat").ids)
        'heat'
    """
    from bertsmith.model_io.run_folder import find_model_folder
    from bertsmith.tokenizers.tokenizer import load

    return load(find_model_folder(Path(folder)))


@python_errors
def prepare(
    corpus: Corpus,
    output: PathLike,
    *,
    tokenizer: Tokenizer | PathLike | None = None,
    target_tokenizer: Tokenizer | PathLike | None = None,
    held_out: float = 0.01,
    unique: bool = False,
    field: str = "text",
    parallel: bool | dict[str, Any] = False,
    limit: int | None = None,
    workers: int | None = None,
    overwrite: bool = False,
    quiet: bool = False,
    **training: Unpack[TrainingSettings],
) -> Shards:
    """Tokenizes a corpus into shards. The same call resumes after an interruption.

    Args:
        corpus: Files, folders or glob patterns, or documents in memory, as in `train_tokenizer`.
        output: The folder of the shards.
        tokenizer: A tokenizer, or the folder of a tokenizer, a model or a run; by default one is trained on the corpus,
            which then cannot be an iterator.
        target_tokenizer: The tokenizer of the target texts of pairs; by default both sides use `tokenizer`.
        held_out: Fraction of the documents held out for evaluation, chosen by the hash of their text.
        unique: Leave out exact duplicates of documents.
        field: Column or key of the text, in tables.
        parallel: The data are pairs of a source and a target text: two line-aligned files, tables with two columns, or
            (source, target) tuples. A dict has settings: `fields` (the two columns), `max_tokens` and `max_ratio`.
        limit: Read only the first documents.
        workers: Processes; by default one per core where the corpus is large enough.
        overwrite: Replace shards in the folder.
        quiet: Do not show progress.
        training: `vocab_size`, `kind`, `cased` and `settings` of `train_tokenizer`, for a tokenizer that is trained.

    Example:
        >>> import bertsmith as bs
        >>> texts = (f"Document {number} is about iron. It is short." for number in range(200))
        >>> shards = bs.prepare(texts, "shards", tokenizer="tokenizer", held_out=0.1)
        >>> shards.documents
        200
        >>> trained = bs.prepare(["corpus/"], "trained", vocab_size=300)  # a tokenizer of its own
        >>> bs.load_tokenizer("trained/tokenizer").vocab_size
        300
    """
    from bertsmith.data import prepare as data
    from bertsmith.data.corpus import ReadOptions
    from bertsmith.data.shards import remove_shard_set

    _check_names(training)
    folder = Path(output)
    if target_tokenizer is not None and not parallel:
        raise ConfigError("target_tokenizer is for the target texts of pairs: set parallel=True")
    words: Tokenizer | TokenizerTraining
    if tokenizer is not None:
        if training:
            raise ConfigError(
                f"{next(iter(training))} is for training a tokenizer: leave it out, or leave out tokenizer"
            )
        words = _loaded(tokenizer)
        words = words if target_tokenizer is None else words.with_target(_loaded(target_tokenizer))
    elif target_tokenizer is not None:
        raise ConfigError("target_tokenizer needs the tokenizer of the source texts: pass tokenizer too")
    else:
        words = _training(**training)
    if overwrite:
        remove_shard_set(folder)
    index = data.prepare(
        _pairs(corpus, field, parallel) if parallel else corpus,
        folder,
        tokenizer=words,
        held_out=held_out,
        unique=unique,
        read_options=ReadOptions(field=field),
        limit=limit,
        workers=workers,
        quiet=quiet,
    )
    return _shards(folder, index)


def _check_names(given: Iterable[str]) -> None:
    """Raises for a keyword that `prepare` does not have."""
    from bertsmith.config import did_you_mean

    settings = TrainingSettings.__annotations__
    if unknown := [name for name in given if name not in settings]:
        known = [*settings, *inspect.signature(prepare).parameters]
        raise ConfigError(f"prepare has no setting {unknown[0]!r}{did_you_mean(unknown[0], known)}")


def _training(**given: Unpack[TrainingSettings]) -> TokenizerTraining:
    from bertsmith import config
    from bertsmith.data.tokenizer_training import VOCAB_SIZE, TokenizerTraining, tokenizer_settings

    defaults, case = tokenizer_settings(given.get("kind"), cased=given.get("cased", False))
    chosen = config.update(defaults, {**case, **(given.get("settings") or {})})
    return TokenizerTraining(chosen, given.get("vocab_size", VOCAB_SIZE))


def _loaded(tokenizer: Tokenizer | PathLike) -> Tokenizer:
    return load_tokenizer(tokenizer) if isinstance(tokenizer, str | os.PathLike) else tokenizer


def _pairs(corpus: Corpus, field: str, parallel: bool | dict[str, Any]) -> Any:
    from bertsmith import config
    from bertsmith.data.corpus import ReadOptions
    from bertsmith.data.parallel import PairOptions, open_parallel

    settings = config.update(PairOptions(), parallel if isinstance(parallel, dict) else {})
    return open_parallel(corpus, ReadOptions(field=field), settings)


def _shards(folder: Path, index: dict[str, Any]) -> Shards:
    from bertsmith.reports.terminal import shard_facts

    facts = shard_facts(index, folder)
    documents = facts["documents"] + facts["held_out_documents"]
    names = ("tokens", "held_out_tokens", "bytes", "unknown_word_rate")
    return Shards(folder, documents, **{name: facts[name] for name in names})
