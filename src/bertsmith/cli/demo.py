"""`bertsmith demo`: the whole pipeline on text that every machine has, without a download."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

import numpy as np
from rich.rule import Rule

import bertsmith
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

VOCAB_SIZE = 4000
SAMPLES = ("The tokenizer splits unbelievably long words into pieces.", "바다에서 바람이 불면 고래의 노래가 들린다.")
ENGLISH = "python.txt"
MINUTES = 2.0  # of pre-training
# A small model for two minutes on any CPU: many small steps, a high learning rate (LOG.md).
SHAPE = ("encoder.layers=2", "encoder.width=128", "encoder.heads=2", "max_length=64", "batch_size=8")
SETTINGS = (*SHAPE, "minutes=2", "learning_rate=2e-3", "eval_every=500", "eval_rows=512", "save_every=500")
# without next-sentence pre-training [CLS] does not represent the sentence: classify the mean of all tokens
FINETUNING = ("learning_rate=5e-4", "epochs=4", "batch_size=16", "max_length=64", "head.pooling=mean")
SEEDS = 3
TRAIN_EXAMPLES, DEV_EXAMPLES = 900, 300
MIN_WORDS, MAX_WORDS = 6, 20  # of a sentence
MASKED = (
    "Return a list of the [MASK] in the file.",
    "This function raises a [MASK] if the value is not valid.",
    "The class has two [MASK] that take no arguments.",
)


def run_demo(output: Path, *, minutes: float = MINUTES, quiet: bool = False) -> None:
    """Text -> tokenizer -> shards -> pre-training -> fill-mask -> fine-tuning -> report, printing each result."""
    started = time.monotonic()
    _clear(output)
    text = output / "text"
    _step(1, "Text: Python's own documentation and a little Korean")
    _write_text(text)

    vocabulary, shards = output / "tokenizer", output / "shards"
    training = f"bertsmith tokenizer train {text} -o {vocabulary} --vocab-size {VOCAB_SIZE} --set coverage=1.0"
    _step(2, "Tokenizer", training)
    # Korean is 0.1 % of the characters: only full coverage keeps all of its syllables
    settings = config.find_kind("bertsmith.tokenizers", "wordpiece").Config(coverage=1.0)
    tokenizer = prepare.train_tokenizer([text], vocabulary, settings=settings, vocab_size=VOCAB_SIZE, quiet=quiet)
    terminal.tokenizer_card(tokenizer, folder=vocabulary)
    for sample in SAMPLES:
        terminal.encoding_sample(tokenizer, sample, tokenizer.encode(sample))
    terminal.facts_table(prepare.measure_tokenizer(vocabulary, [text], quiet=quiet))

    _step(3, "Shards", f"bertsmith prepare {text} -t {vocabulary} -o {shards} --held-out 0.02 --unique")
    index = prepare.prepare([text], shards, tokenizer=vocabulary, held_out=0.02, unique=True, quiet=quiet)
    terminal.facts_table(terminal.shard_facts(index, shards))
    for report in verify(shards):
        terminal.verified_file(report)
    _print_document(Shards.open(shards), load(shards / "tokenizer"))

    run = output / "run"
    _step(4, "Pre-training", f"bertsmith pretrain bert/quick -d {shards} -o {run} --chart {' '.join(SETTINGS)}")
    _pretrain(output, minutes=minutes, quiet=quiet)
    _step(5, "Masked words", f'bertsmith fill-mask {run}/best "{MASKED[0]}"')
    predictor = bertsmith.load(run / "best", device="cpu")
    for masked in MASKED:
        terminal.console.print(masked, style="bold")
        terminal_predictions.mask_predictions([predictor.fill_mask(masked, top_k=3)])
    files = f"--train {output}/task/train.jsonl --dev {output}/task/dev.jsonl -o {output}/task/run"
    tuning = f"bertsmith finetune {run}/best -t classification {files} {' '.join(FINETUNING)}"
    _step(6, "Fine-tuning: is this a sentence, or are its words shuffled?", tuning)
    _finetune(output)
    _step(7, "Report", f"bertsmith runs plot {run}")
    page = write_report([run], run / "report.html")
    terminal.console.print(f"{page}: {page.stat().st_size / 1e3:.0f} kB, opens in any browser, makes no requests")
    terminal.console.print(f"\nDone in {time.monotonic() - started:.0f} s; all files are in {output}/.")


def _pretrain(output: Path, *, minutes: float, quiet: bool) -> None:
    """Two minutes of pre-training, and the held-out losses next to their baselines."""
    from bertsmith import recipes  # imports torch, which the first steps do not need
    from bertsmith.training.pretrain import pretrain
    from bertsmith.training.recipe import with_overrides

    recipe = with_overrides(recipes.find("bert/quick"), [*SETTINGS, f"minutes={minutes}"])
    pretrain(recipe, output / "shards", output / "run", device="cpu", quiet=quiet, chart=True)
    terminal_runs.run_card(read_run(output / "run"))


def _finetune(output: Path) -> None:
    """A small task from the demo's text, compared with the majority class and with random initial weights."""
    from bertsmith.training.finetune import finetune
    from bertsmith.training.recipe import make_finetune_config

    files = _write_task(output / "task", (output / "text" / ENGLISH).read_text(encoding="utf-8"))
    accuracies: dict[str, list[float]] = {"random weights": [], "pre-trained weights": []}
    for seed in range(SEEDS):
        for (name, scores), random_init in zip(accuracies.items(), ("true", "false"), strict=True):
            changes = [*FINETUNING, f"random_init={random_init}", f"seed={seed}"]
            tuning = make_finetune_config("classification", output / "run" / "best", files, changes)
            folder = output / "task" / (name.replace(" ", "-") + f"-{seed}" if random_init == "true" or seed else "run")
            scores.append(finetune(tuning, folder, device="cpu", quiet=True)["score/accuracy"])
    labels = [json.loads(line)["label"] for line in files["dev"].read_text(encoding="utf-8").splitlines()]
    majority = max(map(labels.count, set(labels))) / len(labels)
    terminal.console.print(f"{TRAIN_EXAMPLES} training examples; accuracy on {len(labels)} others, {SEEDS} seeds:")
    for name, scores in {"majority class": [majority] * SEEDS, **accuracies}.items():
        score = summarize_seeds(scores)
        bar = "▇" * round(40 * score.mean)
        terminal.console.print(f"  {name:<22} {score.mean:6.1%} ± {score.deviation or 0.0:.1%}  {bar}")
    random_mean, pretrained_mean = (summarize_seeds(scores).mean for scores in accuracies.values())
    if pretrained_mean <= random_mean:
        terminal.console.print(
            "Two minutes on a CPU are too short for pre-training to help; LOG.md has results from minutes on a GPU."
        )


def _write_task(folder: Path, text: str) -> dict[str, Path]:
    """Writes train and dev files of sentences, every second one with shuffled words."""
    rng, lines = random.Random(0), dict.fromkeys(text.splitlines())
    sentences = [line for line in lines if line.endswith(".") and MIN_WORDS <= len(line.split()) <= MAX_WORDS]
    rng.shuffle(sentences)
    rows = [
        {"text": _shuffled(text, rng), "label": "words"} if number % 2 else {"text": text, "label": "sentence"}
        for number, text in enumerate(sentences[: TRAIN_EXAMPLES + DEV_EXAMPLES])
    ]
    disk, files = Disk(), {"train": folder / "train.jsonl", "dev": folder / "dev.jsonl"}
    disk.make_folder(folder)
    for path, some in zip(files.values(), (rows[:TRAIN_EXAMPLES], rows[TRAIN_EXAMPLES:]), strict=True):
        disk.write_file(path, ["".join(json.dumps(row, ensure_ascii=False) + "\n" for row in some).encode()])
    return files


def _shuffled(sentence: str, rng: random.Random) -> str:
    """Shuffles all words but the first; capital and full stop would give the label away."""
    first, *rest = sentence.removesuffix(".").split()
    rng.shuffle(rest)
    return " ".join((first, *rest)) + "."


def _step(number: int, title: str, command: str = "") -> None:
    terminal.console.print()
    terminal.console.print(Rule(f"{number}. {title}", align="left"))
    if command:
        terminal.console.print(f"$ {command}", style="dim", soft_wrap=True)


def _clear(output: Path) -> None:
    """Removes the output of an earlier demo, and nothing else."""
    if output.exists() and not output.is_dir():
        raise BertsmithError(f"{output} is a file, not a folder: choose another -o")
    if output.exists() and not (output / "text" / "python.txt").exists() and any(output.iterdir()):
        raise BertsmithError(f"{output} contains files that the demo did not write: choose another -o")
    if output.exists():
        Disk().remove_folder(output)


def _write_text(folder: Path) -> None:
    disk = Disk()
    disk.make_folder(folder)
    for name, documents in ((ENGLISH, python_documentation()), ("korean.txt", korean_samples())):
        texts = ["\n".join(line for line in document.text.split("\n") if line.strip()) for document in documents]
        text = "\n\n".join(texts) + "\n"
        disk.write_file(folder / name, [text.encode()])
        counts = f"{len(texts):,} documents, {len(text.split()):,} words, {len(text):,} characters"
        terminal.console.print(f"{folder / name}: {counts}")


def _print_document(shards: Shards, tokenizer: Tokenizer) -> None:
    """Prints the first sentences of one document from the shards."""
    part = shards.parts[0]
    document = part.documents // 2
    first, last = part.document_starts[document : document + 2].tolist()
    starts = part.sentence_starts[first : min(last, first + 4) + 1].astype(np.int64)
    terminal.console.print(f"\nDocument {document:,} in the shards, sentence by sentence:", style="dim")
    for begin, end in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        terminal.console.print(f"  {tokenizer.decode(shards.read(begin, end - begin))}")
