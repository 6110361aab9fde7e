"""The sentence splitter compared with libraries: speed on one core and agreement with the gold sets.

    python bench/sentences.py [--english FILE] [--korean FILE] [--seconds 5]

`Corpus` reads the files; the default is the sample text. Libraries that are not installed, or do not load, are listed
as absent. The authors of the rules also wrote the gold sets, which favours bertsmith (docs/corpora.md).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable
from importlib.metadata import PackageNotFoundError, version
from itertools import cycle
from pathlib import Path

from bertsmith.data.corpus import Corpus
from bertsmith.data.sample_text import korean_samples, python_documentation
from bertsmith.data.sentences import split_sentences

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from data import gold_sentences

Splitter = Callable[[str], Iterable[str]]
LICENCES = {"pysbd": "MIT", "syntok": "MIT", "sentencex": "MIT", "blingfire": "MIT", "kiwipiepy": "Apache-2.0"}
TEXT = 8_000_000  # characters of each language


def pysbd(language: str) -> Splitter:
    from pysbd import Segmenter

    segment: Splitter = Segmenter(language="en", clean=False).segment  # it has no Korean
    return segment


def syntok(language: str) -> Splitter:
    from syntok import segmenter

    def sentences(text: str) -> Iterable[str]:
        for paragraph in segmenter.process(text):
            for tokens in paragraph:
                yield "".join(token.spacing + token.value for token in tokens)

    return sentences


def sentencex(language: str) -> Splitter:
    from sentencex import segment

    return lambda text: segment(language[:2], text)


def blingfire(language: str) -> Splitter:
    from blingfire import text_to_sentences

    return lambda text: text_to_sentences(text).split("\n")


def kiwipiepy(language: str) -> Splitter:
    from kiwipiepy import Kiwi

    kiwi = Kiwi(num_workers=1)
    return lambda text: [sentence.text for sentence in kiwi.split_into_sents(text)]


def speed(splitter: Splitter, texts: list[str], seconds: float) -> float:
    """MB of UTF-8 per second of processor time."""
    sized = [(text, len(text.encode())) for text in texts]
    done, began = 0, time.process_time()
    for text, size in cycle(sized):
        for _ in splitter(text):
            pass
        done += size
        if (taken := time.process_time() - began) > seconds:
            return done / taken / 1e6
    raise ValueError("no text")


def read_text(path: Path | None, language: str) -> list[str]:
    documents = Corpus([path]) if path else python_documentation() if language == "english" else korean_samples()
    texts: list[str] = []
    left = TEXT
    for document in documents:
        texts.append(document.text)
        left -= len(document.text)
        if left <= 0:
            break
    return texts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--english", type=Path)
    parser.add_argument("--korean", type=Path)
    parser.add_argument("--seconds", type=float, default=5.0, help="for each splitter and language")
    arguments = parser.parse_args()
    texts = {language: read_text(getattr(arguments, language), language) for language in ("english", "korean")}
    makers = {"bertsmith": lambda language: split_sentences, **{name: globals()[name] for name in LICENCES}}
    print(f"{'splitter':<18}{'licence':<12}{'language':<10}{'MB/s':>8}{'precision':>11}{'recall':>8}{'F1':>8}")
    for name, maker in makers.items():
        for language, documents in texts.items():
            try:
                splitter = maker(language)
                label = f"{name} {version(name)}" if name in LICENCES else name
            except (ImportError, OSError, PackageNotFoundError) as error:
                print(f"{name:<18}{LICENCES[name]:<12}absent: {type(error).__name__}")
                break
            correct, spurious, missed = gold_sentences.agreement(language, splitter)
            precision, recall = correct / (correct + spurious), correct / (correct + missed)
            f1 = 2 * precision * recall / (precision + recall)
            rate = speed(splitter, documents, arguments.seconds)
            print(f"{label:<18}{LICENCES.get(name, ''):<12}{language:<10}{rate:>8.2f}", end="")
            print(f"{precision:>11.3f}{recall:>8.3f}{f1:>8.3f}", flush=True)


if __name__ == "__main__":
    main()
