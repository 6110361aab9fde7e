"""Unigram training: bertsmith against the trainers of the tokenizers library and of sentencepiece.

    python bench/unigram_training.py [CORPUS] [--megabytes 20] [--vocab-size 8000]

All three learn from the same table of lower-cased, white-space delimited words, in a process of their own. What they
learned is used by the same code: tokens per word and log-likelihood per character (scores brought to a sum of 1) of
the best spellings of the words learned from, and of a tenth as much text that follows. Without CORPUS the text is the
source of Python's own library. sentencepiece is left out where it is not installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import json
import math
import resource
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from bertsmith.tokenizers import training
from bertsmith.tokenizers.unigram.training import MAX_PIECE_LENGTH, train_unigram

EncodedDocuments = list[tuple[str, float]]

TRAINERS = ["bertsmith", "tokenizers"] + ["sentencepiece"] * (importlib.util.find_spec("sentencepiece") is not None)


def text_of(corpus: str, begin: float, end: float) -> str:
    """The corpus between two offsets in megabytes."""
    if corpus:
        with Path(corpus).open("rb") as file:
            file.seek(int(begin * 1e6))
            return file.read(int((end - begin) * 1e6)).decode(errors="ignore")
    paths = sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py"))
    return b"".join(path.read_bytes() for path in paths)[int(begin * 1e6) : int(end * 1e6)].decode(errors="ignore")


def words_of(text: str) -> dict[str, int]:
    return dict(Counter("▁" + word for word in text.lower().split()))


def by_tokenizers(counts: dict[str, int], size: int) -> EncodedDocuments:
    trainer = trainers.UnigramTrainer(
        vocab_size=size + 1,
        max_piece_length=MAX_PIECE_LENGTH,
        special_tokens=["<unk>"],
        unk_token="<unk>",
        show_progress=False,
    )
    learned = training.train_backend(models.Unigram(), trainer, counts)
    return [(piece, score) for piece, score in json.loads(learned.to_str())["model"]["vocab"] if piece != "<unk>"]


def by_sentencepiece(counts: dict[str, int], size: int) -> EncodedDocuments:
    import sentencepiece

    written = io.BytesIO()
    with tempfile.NamedTemporaryFile("w", suffix=".tsv", encoding="utf-8") as table:
        table.writelines(f"{word[1:]}\t{count}\n" for word, count in counts.items())
        table.flush()
        sentencepiece.SentencePieceTrainer.train(
            input=table.name,
            input_format="tsv",
            model_writer=written,
            vocab_size=size + 1,
            character_coverage=1.0,
            normalization_rule_name="identity",
            split_by_unicode_script=False,
            split_by_number=False,
            max_sentencepiece_length=MAX_PIECE_LENGTH,
            **{"unk_id": 0, "bos_id": -1, "eos_id": -1},
            minloglevel=2,
        )
    model = sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())
    return [(model.id_to_piece(number), model.get_score(number)) for number in range(1, model.get_piece_size())]


def one_run(options: argparse.Namespace) -> None:
    """In a subprocess: one timed trainer, its pieces on standard output."""
    counts = words_of(text_of(options.corpus, 0, options.megabytes))
    begin, worked = time.perf_counter(), time.process_time()
    if options.trainer == "bertsmith":
        pieces = train_unigram(counts, vocab_size=options.vocab_size)
    else:
        train = by_tokenizers if options.trainer == "tokenizers" else by_sentencepiece
        pieces = train(counts, options.vocab_size)
    seconds, processor = time.perf_counter() - begin, time.process_time() - worked
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e6
    json.dump({"pieces": pieces, "seconds": seconds, "processor": processor, "peak": peak}, sys.stdout)


def quality(pieces: EncodedDocuments, counts: dict[str, int]) -> tuple[float, float]:
    """Tokens per word, and log-likelihood per character, of the best segmentations."""
    total = math.log(sum(math.exp(score) for _, score in pieces))
    vocabulary = [("<unk>", -30.0), *((piece, score - total) for piece, score in pieces)]
    scores = [score for _, score in vocabulary]
    backend = Tokenizer(models.Unigram(vocabulary, unk_id=0))
    backend.pre_tokenizer = pre_tokenizers.CharDelimiterSplit("\n")
    tokens, likelihood = 0, 0.0
    for count, ids in spelled(backend, counts):
        tokens += count * len(ids)
        likelihood += count * sum(scores[number] for number in ids)
    characters = sum(count * len(word) for word, count in counts.items())
    return tokens / sum(counts.values()), likelihood / characters


def spelled(backend: Tokenizer, counts: dict[str, int]) -> Iterator[tuple[int, list[int]]]:
    """Count and best segmentation of each word."""
    words = list(counts)
    for first in range(0, len(words), 10_000):
        some = words[first : first + 10_000]
        for word, encoding in zip(some, backend.encode_batch_fast(some), strict=True):
            yield counts[word], encoding.ids


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("corpus", nargs="?", default="")
    parser.add_argument("--megabytes", type=float, default=20)
    parser.add_argument("--vocab-size", type=int, default=8000)
    parser.add_argument("--trainer", choices=TRAINERS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.trainer:
        one_run(options)
        return
    counts = words_of(text_of(options.corpus, 0, options.megabytes))
    after = words_of(text_of(options.corpus, options.megabytes, 1.1 * options.megabytes))
    print(f"{options.vocab_size} pieces from {options.megabytes:g} MB of {options.corpus or 'Python'}", end=", ")
    print(f"{len(counts)} different words")
    print(f"{'':14}{'seconds':>8}{'cpu':>8}{'peak MB':>8}{'tokens/word':>12}{'log-l./char':>12}{'text after':>20}")
    for name in TRAINERS:
        command = [sys.executable, __file__, *sys.argv[1:], "--trainer", name]
        done = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        row = f"{name:14}{done['seconds']:8.1f}{done['processor']:8.1f}{done['peak']:8.0f}"
        for words, width in ((counts, 12), (after, 10)):
            tokens, likelihood = quality(done["pieces"], words)
            row += f"{tokens:{width}.4f}{likelihood:{width}.4f}"
        print(row, flush=True)


if __name__ == "__main__":
    main()
