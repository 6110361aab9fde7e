"""`bertsmith demo`: the road on text that is on every machine, with no download and no data file."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from rich.rule import Rule

from bertsmith import config
from bertsmith.data import prepare
from bertsmith.data.sample_text import korean_samples, python_documentation
from bertsmith.data.shards import Shards, verify
from bertsmith.errors import BertsmithError
from bertsmith.metrics.confidence import summarize_seeds
from bertsmith.reports import terminal, terminal_predictions, terminal_runs
from bertsmith.reports.report_page import write_report
from bertsmith.reports.run_history import read_run
from bertsmith.system.durable import Disk
from bertsmith.tokenizers.tokenizer import Tokenizer, load
from bertsmith.types import Document

VOCABULARY = 4000
SAMPLES = (
    "The tokenizer splits unbelievably long words into pieces.",
    "바다에서 바람이 불면 고래의 노래가 들린다.",
)
ENGLISH = "python.txt"
MINUTES = 2.0  # of pre-training
# The smallest model, for two minutes on any CPU: many small steps, a high rate (LOG.md).
SETTINGS = (
    "encoder.layers=2",
    "encoder.width=128",
    "encoder.heads=2",
    "max_length=64",
    "batch_size=8",
    "minutes=2",
    "learning_rate=2e-3",
    "eval_every=500",
    "eval_rows=512",
    "save_every=500",
)
# no token alone knows what a sentence is after pre-training without next sentence: the mean of all is read
TUNING = ("learning_rate=5e-4", "epochs=4", "batch_size=16", "max_length=64", "head.pooling=mean")
SEEDS, LEARNED, SCORED = 3, 900, 300  # runs; sentences
SHORTEST, LONGEST = 6, 20  # words of a sentence
GAPS = (
    "Return a list of the [MASK] in the file.",
    "This function raises a [MASK] if the value is not valid.",
    "The class has two [MASK] that take no arguments.",
)


def run_demo(output: Path, *, minutes: float = MINUTES, quiet: bool = False) -> None:
    """Text -> tokenizer -> shards -> BERT -> words -> page, each with a look at it; the folder is left to play with."""
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
    settings = config.find_kind("bertsmith.tokenizers", "wordpiece").Config(coverage=1.0)
    learned = prepare.train_tokenizer(
        [text], output / "tokenizer", settings=settings, vocab_size=VOCABULARY, quiet=quiet
    )
    terminal.trained_tokenizer(learned, output / "tokenizer")
    for sample in SAMPLES:
        terminal.encoding_sample(learned, sample, learned.encode(sample))
    terminal.facts_table(prepare.measure_tokenizer(output / "tokenizer", [text], quiet=quiet))

    _step(3, "Shards", f"bertsmith prepare {text} -t {output}/tokenizer -o {output}/shards --held-out 0.02 --unique")
    index = prepare.prepare(
        [text], output / "shards", tokenizer=output / "tokenizer", held_out=0.02, unique=True, quiet=quiet
    )
    terminal.facts_table(terminal.shard_facts(index, output / "shards"))
    for report in verify(output / "shards"):
        terminal.verified_file(report)
    _look_inside(Shards.open(output / "shards"), load(output / "shards" / "tokenizer"))

    words = " ".join(SETTINGS)
    _step(4, "Pre-training", f"bertsmith pretrain bert/quick -d {output}/shards -o {output}/run --picture {words}")
    _pretrain(output, minutes=minutes, quiet=quiet)
    _step(5, "Words that were hidden", f'bertsmith fill-mask {output}/run/best "{GAPS[0]}"')
    _fill(output / "run" / "best")
    words = " ".join(TUNING)
    _step(
        6,
        "A task: is it a sentence, or its words in no order?",
        f"bertsmith finetune {output}/run/best -t classification --train {output}/task/train.jsonl "
        f"--dev {output}/task/dev.jsonl -o {output}/task/run {words}",
    )
    _finetune(output)
    _step(7, "Report", f"bertsmith runs plot {output}/run")
    _report(output / "run")
    terminal.console.print(f"\nDone in {time.monotonic() - began:.0f} s; everything is in {output}/.")


def _pretrain(output: Path, *, minutes: float, quiet: bool) -> None:
    """Two minutes of BERT, and how far it came against guessing."""
    from bertsmith import recipes  # these bring torch, which the first steps can do without
    from bertsmith.training.pretraining import pretrain
    from bertsmith.training.recipe import with_overrides

    recipe = with_overrides(recipes.find("bert/quick"), [*SETTINGS, f"minutes={minutes}"])
    pretrain(recipe, output / "shards", output / "run", device="cpu", quiet=quiet, picture=True)
    terminal_runs.run_card(read_run(output / "run"))


def _fill(model: Path) -> None:
    from bertsmith.inference.predictor import Predictor

    predictor = Predictor.open(model, device="cpu")
    for text in GAPS:
        terminal.console.print(text, style="bold")
        terminal_predictions.fillings([predictor.fill_mask(text, top_k=3)])


def _finetune(output: Path) -> None:
    """A small task made of the demo's own text: against the commonest answer, and against no pre-training."""
    from bertsmith.training.finetuning.tuning import make_finetune_config
    from bertsmith.training.finetuning.work import finetune

    files = _write_task(output / "task", (output / "text" / ENGLISH).read_text(encoding="utf-8"))
    said: dict[str, list[float]] = {"without pre-training": [], "with pre-training": []}
    for seed in range(SEEDS):
        for (name, scores), fresh in zip(said.items(), ("true", "false"), strict=True):
            changes = [*TUNING, f"random_init={fresh}", f"seed={seed}"]
            tuning = make_finetune_config("classification", output / "run" / "best", files, changes)
            folder = output / "task" / (name.replace(" ", "-") + f"-{seed}" if fresh == "true" or seed else "run")
            scores.append(finetune(tuning, folder, device="cpu", quiet=True)["score/accuracy"])
    labels = [json.loads(line)["label"] for line in files["dev"].read_text(encoding="utf-8").splitlines()]
    commonest = max(map(labels.count, set(labels))) / len(labels)
    terminal.console.print(f"learned from {LEARNED} examples; accuracy on {len(labels)} others, {SEEDS} seeds:")
    for name, scores in {"always the commonest": [commonest] * SEEDS, **said}.items():
        found = summarize_seeds(scores)
        bar = "▇" * round(40 * found.mean)
        terminal.console.print(f"  {name:<22} {found.mean:6.1%} ± {found.deviation or 0.0:.1%}  {bar}")
    without, trained = (summarize_seeds(scores).mean for scores in said.values())
    if trained <= without:
        terminal.console.print(
            "Two minutes on a CPU are too few for pre-training to pay; what minutes on a GPU give: LOG.md."
        )


def _write_task(folder: Path, text: str) -> dict[str, Path]:
    """Sentences of the text, every second one with its words in no order, as files to learn from and to score on."""
    draw, lines = random.Random(0), dict.fromkeys(text.splitlines())
    sentences = [line for line in lines if line.endswith(".") and SHORTEST <= len(line.split()) <= LONGEST]
    draw.shuffle(sentences)
    rows = [
        {"text": _in_no_order(text, draw), "label": "words"} if number % 2 else {"text": text, "label": "sentence"}
        for number, text in enumerate(sentences[: LEARNED + SCORED])
    ]
    disk, files = Disk(), {"train": folder / "train.jsonl", "dev": folder / "dev.jsonl"}
    disk.make_folder(folder)
    for path, some in zip(files.values(), (rows[:LEARNED], rows[LEARNED:]), strict=True):
        disk.write_file(path, ["".join(json.dumps(row, ensure_ascii=False) + "\n" for row in some).encode()])
    return files


def _in_no_order(sentence: str, draw: random.Random) -> str:
    """The first word and the full stop stay where they are, which would tell."""
    first, *rest = sentence.removesuffix(".").split()
    draw.shuffle(rest)
    return " ".join((first, *rest)) + "."


def _report(run_folder: Path) -> None:
    page = write_report([run_folder], run_folder / "report.html")
    terminal.console.print(f"{page}: {page.stat().st_size / 1e3:.0f} kB, opens in any browser, asks for nothing")


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
    for name, documents in ((ENGLISH, python_documentation()), ("korean.txt", korean_samples())):
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
