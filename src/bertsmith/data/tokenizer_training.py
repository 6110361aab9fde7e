"""How the tokenizer of a corpus is trained, by `train_tokenizer` or by `prepare` without a tokenizer.

`prepare` records the settings beside the shards, so that the same call finds the trained tokenizer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from bertsmith import config
from bertsmith.data import work_units
from bertsmith.data.corpus import Corpus, empty_corpus_error
from bertsmith.data.in_memory import Texts
from bertsmith.data.shards.folder import (
    BUILDING,
    INDEX,
    TOKENIZER,
    TRAINING,
    damaged_tokenizer_files,
    finished_set_error,
    other_settings_error,
    read_plan,
    remove_leftovers,
)
from bertsmith.errors import DataError
from bertsmith.system.durable import Disk, read_checksummed_json
from bertsmith.system.progress import Progress
from bertsmith.system.workers import default_workers, ordered_map
from bertsmith.tokenizers import tokenizer as tokenizers
from bertsmith.tokenizers.tokenizer import Tokenizer
from bertsmith.tokenizers.training import MAX_WORDS, count_text, merge_counts

KIND, VOCAB_SIZE = "wordpiece", 30_522  # BERT's
Result = TypeVar("Result")


@dataclass(frozen=True)
class TokenizerTraining:
    """The kind of tokenizer, with its settings, and the size of its vocabulary."""

    settings: Any  # the `Config` of a kind
    vocab_size: int = VOCAB_SIZE
    max_words: int = MAX_WORDS  # distinct words that are kept in memory while counting

    def train(
        self, corpus: Corpus, *, limit: int | None = None, workers: int | None = None, quiet: bool = False
    ) -> Tokenizer:
        """A tokenizer trained on the first `limit` documents."""
        count = partial(_count_words, splitter=self.settings.word_splitter())
        counted = map_texts(count, corpus, title="counting words", limit=limit, workers=workers, quiet=quiet)
        return self._train(counted, corpus)

    def train_on_sample(self, texts: list[str], corpus: Corpus) -> Tokenizer:
        """A tokenizer trained on these texts of a corpus."""
        return self._train([_count_words(texts, self.settings.word_splitter())], corpus)

    def _train(self, counted: Iterable[dict[str, int]], corpus: Corpus) -> Tokenizer:
        table = merge_counts(counted, limit=self.max_words)
        if not table:
            raise empty_corpus_error(corpus)
        tokenizer: Tokenizer = self.settings.train(table, vocab_size=self.vocab_size)
        return tokenizer

    def record(self) -> dict[str, Any]:
        """All of it as plain values."""
        return {**config.to_dict(self.settings), "vocab_size": self.vocab_size, "max_words": self.max_words}


def tokenizer_settings(kind: str | None, *, cased: bool) -> tuple[Any, dict[str, Any]]:
    """The default settings of a kind, and the changes that keep case and accents where it can change them."""
    defaults = config.find_kind("bertsmith.tokenizers", kind or KIND).Config()
    return defaults, {"lowercase": False} if cased and hasattr(defaults, "lowercase") else {}


def prepare_tokenizer(
    training: TokenizerTraining,
    corpus: Corpus,
    folder: Path,
    *,
    disk: Disk,
    limit: int | None = None,
    workers: int | None = None,
    quiet: bool = False,
) -> Tokenizer:
    """The tokenizer that an earlier call with these settings trained for the shards in `folder`, or a new one."""
    if isinstance(corpus, Texts) and corpus.single_pass:
        raise DataError(
            "the texts are an iterator, which can be read only once, but prepare reads them twice to train a "
            "tokenizer: pass a list, or a tokenizer"
        )
    if folder.exists():
        disk.make_folder(folder)  # an error for a file
        plan = next((read_plan(folder / name) for name in (BUILDING, INDEX) if (folder / name).exists()), None)
        if plan is not None and (known := _trained_before(training, folder, plan)):
            return known
        with disk.lock(folder):
            remove_leftovers(folder, plan, disk)  # files of anything else are an error, before hours of training
    return training.train(corpus, limit=limit, workers=workers, quiet=quiet)


def _trained_before(training: TokenizerTraining, folder: Path, plan: dict[str, Any]) -> Tokenizer | None:
    """The complete tokenizer of a shard set, if it was trained with these settings; other settings are an error."""
    finished = not (folder / BUILDING).exists()
    if not (folder / TRAINING).exists():
        if finished:
            raise finished_set_error(folder)
        return None
    before = read_checksummed_json(folder / TRAINING)
    if changes := list(config.differences(before, training.record() | {"seal": before["seal"]})):
        raise finished_set_error(folder) if finished else other_settings_error(folder, changes)
    return None if damaged_tokenizer_files(folder, plan) else tokenizers.load(folder / TOKENIZER)


def _count_words(texts: list[str], splitter: Any) -> dict[str, int]:
    return count_text("\n".join(texts), splitter)


def map_texts(
    function: Callable[[list[str]], Result],
    corpus: Corpus,
    *,
    title: str,
    limit: int | None,
    workers: int | None,
    quiet: bool,
) -> Iterator[Result]:
    """Yields `function(texts)` for every work unit of the first `limit` documents, and shows the progress."""
    units = work_units.units_of(corpus, limit=limit)
    with Progress(title, total=corpus.bytes_total, quiet=quiet) as progress:
        for bytes_read, result in ordered_map(partial(_call, function), units, workers=workers or default_workers()):
            progress.update(bytes_read)
            yield result


def _call(function: Callable[[list[str]], Result], unit: work_units.WorkUnit) -> tuple[int, Result]:
    return unit.bytes_read, function(unit.texts)
