"""`bertsmith demo`: the road on text that is on every machine, with no download and no data file."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from rich.rule import Rule

from bertsmith import config, run, terminal
from bertsmith.corpus.prose import korean_prose, python_prose
from bertsmith.corpus.shards import Shards, verify
from bertsmith.durable import Disk
from bertsmith.errors import BertsmithError
from bertsmith.text.tokenizer import Tokenizer, load
from bertsmith.types import Document

VOCABULARY = 8000
SAMPLES = (
    "The tokenizer splits unbelievably long words into pieces.",
    "바다에서 바람이 불면 고래의 노래가 들린다.",
)


def run_demo(output: Path, *, quiet: bool = False) -> None:
    """Text -> tokenizer -> shards, each with a look at it; the folder is left for the user to play with."""
    began = time.monotonic()
    _clear(output)
    text = output / "text"
    _step(1, "Text: Python's own documentation, and a little Korean")
    _write_text(text)

    _step(
        2,
        "Tokenizer",
        f"bertsmith tokenizer train {text} -o {output}/tokenizer --vocab-size {VOCABULARY} --set coverage=1.0",
    )
    # the little Korean is 0.1 % of the characters: only full coverage keeps all of its syllables
    settings = config.find("bertsmith.text", "wordpiece").Config(coverage=1.0)
    learned = run.train_tokenizer(
        [text], output / "tokenizer", settings=settings, vocabulary_size=VOCABULARY, quiet=quiet
    )
    terminal.tokenizer_learned(learned, output / "tokenizer")
    for sample in SAMPLES:
        terminal.encoding_line(learned, sample, learned.encode(sample))
    terminal.table(run.measure_tokenizer(output / "tokenizer", [text], quiet=quiet))

    _step(3, "Shards", f"bertsmith prepare {text} -t {output}/tokenizer -o {output}/shards --held-out 0.02 --unique")
    index = run.prepare(
        [text], output / "shards", tokenizer=output / "tokenizer", held_out=0.02, unique=True, quiet=quiet
    )
    terminal.table(terminal.shard_facts(index, output / "shards"))
    for report in verify(output / "shards"):
        terminal.verified(report)
    _look_inside(Shards.open(output / "shards"), load(output / "shards" / "tokenizer"))
    terminal.console.print(f"\nDone in {time.monotonic() - began:.0f} s; everything is in {output}/.")


def _step(number: int, title: str, command: str = "") -> None:
    terminal.console.print()
    terminal.console.print(Rule(f"{number}. {title}", align="left"))
    if command:
        terminal.console.print(f"$ {command}", style="dim", soft_wrap=True)


def _clear(output: Path) -> None:
    """Makes room: what an earlier demo left is removed, what anybody else put there is not."""
    if output.exists() and not (output / "text" / "python.txt").exists() and any(output.iterdir()):
        raise BertsmithError(f"{output} holds something that no demo wrote: choose another -o")
    if output.exists():
        Disk().remove_folder(output)


def _write_text(folder: Path) -> None:
    disk = Disk()
    disk.make_folder(folder)
    for name, documents in (("python.txt", python_prose()), ("korean.txt", korean_prose())):
        count, text = _joined(documents)
        disk.write_file(folder / name, [text.encode()])
        terminal.console.print(
            f"{folder / name}: {count:,} documents, {len(text.split()):,} words, {len(text):,} characters"
        )


def _joined(documents: Iterable[Document]) -> tuple[int, str]:
    texts = ["\n".join(line for line in document.text.split("\n") if line.strip()) for document in documents]
    return len(texts), "\n\n".join(texts) + "\n"


def _look_inside(shards: Shards, tokenizer: Tokenizer) -> None:
    """The first sentences of one document, read back from the disk."""
    part = shards.parts[0]
    document = part.documents // 2
    first, last = part.document_starts[document : document + 2].tolist()
    starts = part.sentence_starts[first : min(last, first + 4) + 1].astype(np.int64)
    terminal.console.print(f"\nDocument {document:,} as it lies in the shards, sentence by sentence:", style="dim")
    for begin, end in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        terminal.console.print(f"  {tokenizer.decode(shards.read(begin, end - begin))}")
