"""Word vectors against word vectors and CoVe, from text to a table (McCann et al. 2017, §7).

    PYTHONPATH=src:. python -m bench.cove DATA WORK [--only vectors translation tasks] [--seeds 3] [--jobs 6]
        [--set STAGE:SETTING=VALUE]... [--stop-after 540] [--device cuda]

Every stage is a few commands of bertsmith, which are printed. The same call skips what is finished and resumes the
rest; `--stop-after` saves and ends it in time, with exit status 75.

- `vectors`: skip-gram vectors of DATA/en-wiki-1.txt (or .xz, .gz), instead of the paper's GloVe.
- `translation`: the LSTM translation model over these vectors, which stay fixed, on DATA/multi30k (English to German),
  its BLEU on val, and all words of the vectors in its source vocabulary.
- `tasks`: the biattentive classification network on SST-2 and IMDb, a BiLSTM tagger on CoNLL-2003; `cove` reads words
  and context vectors, `cove+embeddings` the words alone. TREC is not among our data: IMDb with as many labels as TREC
  has (5,500, reviews cut to 200 words) stands in for it, with 5,000 reviews of its test set as dev examples.

DATA has SST-2 (glue), eng.train, eng.testa and eng.testb (CoNLL-2003), train.jsonl and test.jsonl (IMDb).
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.command_chain import CommandChain, add_options, run_stages
from bertsmith.errors import ConfigError, DataError

STAGES = ("vectors", "translation", "tasks")
CORPUS = "en-wiki-1.txt"
MULTI30K = "multi30k"
WIDTH = 300  # of the word vectors, as the paper's
VOCABULARY = {"vectors": 100_000, "translation": 12_000}
SETTINGS: dict[str, tuple[str, ...]] = {
    "vectors": ("minutes=2", f"encoder.width={WIDTH}"),
    "translation": ("encoder.fixed_embeddings=true", "steps=2000", "eval_every=0", "save_every=500"),
    "tasks": (
        *("glue/sst-2:epochs=3", "glue/sst-2:batch_size=128"),
        *("conll:epochs=10", "conll:head.recurrent=bilstm", "conll:head.recurrent_width=300"),
        *("classification:epochs=5", "classification:limit=5500", "classification:subset=stratified"),
        "classification:max_length=202",
    ),
}
TASKS = {"glue/sst-2": ".", "classification": "imdb", "conll/conll2003": "."}  # folders of their files below DATA
DEV_REVIEWS = 5000  # of IMDb's test set


def main(words: Sequence[str] | None = None) -> int:
    """Runs the stages; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1, help="runs of tasks at a time")
    add_options(parser, STAGES)
    options = parser.parse_args(words)
    return run_stages(Study, options, STAGES)


class Study:
    """The stages, and the folders of their results."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.settings = {stage: [*changes] for stage, changes in SETTINGS.items()}
        for change in options.set:
            stage, colon, rest = change.partition(":")
            if not colon or stage not in self.settings:
                raise ConfigError(f"--set {change}: write STAGE:SETTING=VALUE, STAGE one of {', '.join(STAGES)}")
            self.settings[stage].append(rest)
        self.options, self.data, self.work = options, options.data, options.work
        self.chain, self.device = CommandChain(self.work), ["--device", options.device]

    def vectors(self) -> None:
        """Skip-gram vectors of Wikipedia."""
        tokenizer, shards = self.work / "wiki-tokenizer", self.work / "wiki-shards"
        if not self.chain.is_done("wiki-shards"):
            corpus = next(iter(sorted(self.data.glob(f"{CORPUS}*"))), None)
            if corpus is None:
                raise DataError(f"{self.data} has no {CORPUS}, nor {CORPUS}.xz or {CORPUS}.gz")
            kind = ["--kind", "words", "--cased", "--vocab-size", VOCABULARY["vectors"], "--overwrite", "-q"]
            self.chain.run("wiki-tokenizer", ["tokenizer", "train", corpus, "-o", tokenizer, *kind])
            self.chain.run("wiki-shards", ["prepare", corpus, "-t", tokenizer, "-o", shards, "-q"])
        run = ["-d", shards, "-o", self.work / "vectors", *self.device, *self.settings["vectors"]]
        self.chain.run("vectors", ["pretrain", "word_vectors/quick", *run])

    def translation(self) -> None:
        """The translation model with all words of the vectors: WORK/cove."""
        train, val = ([self._pairs(split, language) for language in ("en", "de")] for split in ("train", "val"))
        tokenizer, shards, run = self.work / "pairs-tokenizer", self.work / "pairs-shards", self.work / "translation"
        vectors = self.work / "vectors"
        kind = ["--kind", "words", "--cased", "--vocab-size", VOCABULARY["translation"], "--overwrite", "-q"]
        self.chain.run("pairs-tokenizer", ["tokenizer", "train", *train, "--parallel", "-o", tokenizer, *kind])
        prepared = ["-t", tokenizer, "-o", shards, "--held-out", 0, "-q"]
        self.chain.run("pairs-shards", ["prepare", *train, "--parallel", *prepared])
        settings = [f"vectors={vectors}", f"encoder.embedding_width={WIDTH}", *self.settings["translation"]]
        self.chain.run("translation", ["pretrain", "cove/quick", "-d", shards, "-o", run, *self.device, *settings])
        self.chain.run("bleu", ["translate", run, val[0], "--reference", val[1], "-o", self.work / "val.de", "-q"])
        self.chain.run("cove", ["extend", run, "--vectors", vectors, "-o", self.work / "cove"])

    def tasks(self) -> None:
        """The table."""
        folder = self.work / "imdb"
        if "classification" in self.options.tasks and not (folder / "train.jsonl").exists():
            self._write_reviews(folder)
        named = [f"{task}={folder if where == 'imdb' else self.data / where}" for task, where in TASKS.items()]
        tasks = [word for task in self.options.tasks for word in ("-t", task)]
        data = [word for one in named for word in ("--data", one)]
        changes = [word for change in self.settings["tasks"] for word in ("--set", change)]
        models = [f"cove={self.work / 'cove'}", "cove+embeddings"]
        how = ["--seeds", self.options.seeds, "--jobs", self.options.jobs, "-o", self.work / "tasks", *self.device]
        self.chain.run("tasks", ["ablate", *models, *tasks, *data, *changes, *how])

    def _write_reviews(self, folder: Path) -> None:
        """IMDb's training set, and as dev examples a random part of its test set."""
        lines = (self.data / "test.jsonl").read_text(encoding="utf-8").rstrip("\n").split("\n")
        drawn = random.Random(0).sample(lines, min(DEV_REVIEWS, len(lines)))
        folder.mkdir(exist_ok=True)
        (folder / "dev.jsonl").write_text("\n".join(drawn) + "\n", encoding="utf-8")
        (folder / "train.jsonl").symlink_to((self.data / "train.jsonl").resolve())

    def _pairs(self, split: str, language: str) -> Path:
        found = sorted((self.data / MULTI30K).rglob(f"{split}.{language}*"))
        if not found:
            raise DataError(f"{self.data / MULTI30K} has no {split}.{language}, nor {split}.{language}.gz")
        return found[0]


if __name__ == "__main__":
    sys.exit(main())
