"""Typical mistakes on the command line: one helpful line on stderr, an exit code, no traceback."""

from __future__ import annotations

import json
import shlex
import unicodedata
from pathlib import Path
from types import SimpleNamespace

import pytest
from command_line import call
from finetune_fixtures import tiny_model

from bertsmith import config, recipes
from bertsmith.cli.options import usage_message
from bertsmith.errors import ConfigError
from bertsmith.evaluation.evaluator import EvaluationConfig
from bertsmith.training.recipe import find_task, make_finetune_config, with_overrides

ROWS = "the smith has red iron,iron\nthe smith has red gold,gold\n"
USAGE, DATA, STORAGE, CONFIG = 2, 65, 74, 78
TUNE = "finetune {b}/m -o {b}/o --device cpu -t classification --train {b}/train.csv"
PRETRAIN = "pretrain bert/tiny -o {b}/o --device cpu -d {shards}"
MISTAKES: dict[str, tuple[str, int, str]] = {
    # values that are not possible
    "a number that is not finite": (
        PRETRAIN + " encoder.initializer_range=nan",
        CONFIG,
        "=nan must be a finite number",
    ),
    "an endless learning rate": (TUNE + " learning_rate=inf", CONFIG, "learning_rate=inf must be a finite number"),
    "a seed that is too large": (PRETRAIN + " --seed 99999999999999999999999", CONFIG, "must be at least 0 and below"),
    # the wrong folder or file
    "other files in the output": ("pretrain bert/tiny -d {shards} -o {b}", CONFIG, "holds other files, such as"),
    "a file as the output of a demo": ("demo -o {b}/train.csv", USAGE, "train.csv is a file, not a folder"),
    "a folder without a model": ("fill-mask {b} [MASK]", DATA, "{b} is not a model folder: it has no config.json"),
    "a tokenizer as the model": ("classify {b}/t iron", DATA, "{b}/t is a tokenizer, not a model"),
    "shards as the model": ("embed {shards} iron", DATA, "{shards} is a shard set, not a model"),
    "a file of the model": ("ner {b}/m/config.json iron", DATA, "pass its folder, {b}/m"),
    "a model of the internet": (
        "fill-mask bert-base-uncased [MASK]",
        DATA,
        "does not exist: a model is a local folder",
    ),
    "shards as text": ("prepare {shards} -t {b}/t -o {b}/o", DATA, "{shards} is a shard set, not text"),
    "text as shards": (
        "pretrain bert/tiny -o {b}/o -d {b}/text.txt",
        DATA,
        "{b}/text.txt is a file, not a shard set: make one with `bertsmith prepare {b}/text.txt -o DIR`",
    ),
    "an empty table": (f"{TUNE} --train {{b}}/empty.csv", DATA, "empty.csv has no rows"),
    "an empty text": ("tokenizer train {b}/empty.txt -o {b}/o", DATA, "no text in {b}/empty.txt"),
    "an output that is a file": (
        f"{TUNE} -o {{b}}/text.txt",
        CONFIG,
        "{b}/text.txt is a file, not a folder: choose another -o",
    ),
    "the model as output": (
        f"{TUNE} -o {{b}}/m",
        CONFIG,
        "{b}/m is a model folder, not a run folder: choose",
    ),
    "shards as output of a comparison": (
        f"compare {PRETRAIN.removeprefix('pretrain ')} -o {{shards}}",
        CONFIG,
        "{shards} is a shard set, not a run folder: choose another -o",
    ),
    "other files in the output of a comparison": (
        f"compare {PRETRAIN.removeprefix('pretrain ')} -o {{b}}",
        CONFIG,
        "{b} holds other files, such as",
    ),
    "the model as output of a sweep": (
        f"{TUNE} --dev {{b}}/train.csv --seeds 2 -o {{b}}/m",
        CONFIG,
        "{b}/m is a model folder, not a run folder: choose",
    ),
    "shards as output": (f"{PRETRAIN} -o {{shards}}", CONFIG, "{shards} is a shard set, not a run folder: choose"),
    "a text file as the model": (
        "embed {b}/text.txt iron",
        DATA,
        "{b}/text.txt is not a folder: a model is a local folder with config.json and model.safetensors\n",
    ),
    "a broken link": ("prepare {b}/link.txt -t {b}/t -o {b}/o", DATA, "link.txt does not exist: it is a link to"),
    "SQuAD as a table": (
        f"{TUNE} --train {{b}}/squad.json".replace("classification", "qa"),
        DATA,
        "squad.json is a SQuAD file, not a table of questions: pass --task squad/2.0",
    ),
    "a table as SQuAD": (
        TUNE.replace("classification", "squad/2.0"),
        DATA,
        "train.csv is a table, not a SQuAD file: pass --task qa",
    ),
    "a name that is too long": (f"{TUNE} -o {{b}}/{'o' * 300}", STORAGE, "File name too long: "),
    "a folder beside the model": ("embed {b}/mm iron", DATA, "model.safetensors; did you mean {b}/m?"),
    # names
    "a misspelt recipe": (PRETRAIN.replace("tiny", "tinny"), CONFIG, "did you mean bert/tiny?"),
    "a family as the recipe": (
        "init bert",
        CONFIG,
        "bert is not a recipe: `bertsmith init` lists all recipes; did you",
    ),
    "a task as the recipe": ("init classification", USAGE, "pass --task classification"),
    "a misspelt task": (f"{TUNE} -t clasification", CONFIG, "did you mean classification?"),
    "a task without its benchmark": (f"{TUNE} -t sst2", CONFIG, "did you mean glue/sst-2?"),
    "a benchmark without a task": (f"{TUNE} -t glue", CONFIG, "glue has several tasks: choose one of glue/cola, glue/"),
    "a command of other tools": ("train {b}/m", USAGE, "Did you mean pretrain, or finetune for a task?"),
    "a misspelt command": ("fine-tune {b}/m", USAGE, "Did you mean 'finetune'? Try bertsmith --help."),
    # examples
    "other column names": (f"{TUNE} --train {{b}}/columns.csv", DATA, "columns.csv: no column for the text among id, "),
    "dev without labels": (f"{TUNE} --dev {{b}}/unlabelled.csv", DATA, "unlabelled.csv: no column 'label' among text"),
    "a label only in dev": (f"{TUNE} --dev {{b}}/labels.csv", DATA, "labels.csv:3: label 'wood' is not one of the"),
    "a label in NFD": (
        f"{TUNE} --train {{b}}/nfc.csv --dev {{b}}/nfd.csv",
        DATA,
        "differs only in its Unicode normalization",
    ),
    # settings
    "a misspelt setting": (f"{TUNE} epochz=3", CONFIG, "did you mean epochs=3?"),
    "a setting without its table": (f"{PRETRAIN} layers=4", CONFIG, "did you mean encoder.layers=4?"),
    "a column as a setting of the run": (f"{TUNE} text=review", CONFIG, "did you mean task.text=review?"),
    "a setting with spaces": (f"{TUNE} epochs = 3", CONFIG, "bertsmith: write epochs=3 without spaces"),
    "a setting as an option": (f"{TUNE} --epochs 3", USAGE, "If it is a setting, write epochs=3 without dashes."),
    "a setting with one dash": (f"{TUNE} -lr=1e-4", USAGE, "No such option: -lr. If it is a setting, write lr=1e-4"),
    "an option that is near": (f"{TUNE} --learning-rate 1", USAGE, "Did you mean --learning-rates? If it is a setting"),
    "test examples to evaluate": (
        "evaluate {b}/m --test test.csv",
        USAGE,
        "No such option: --test. Write --file test.csv --split test.",
    ),
    "training examples to evaluate": ("evaluate {b}/m --train=a.csv", USAGE, "Write --file a.csv --split train."),
    "test examples to predict": ("predict {b}/m --test test.csv", USAGE, "Write --file test.csv. Try"),
    "a comma in a number": (f"{PRETRAIN} steps=1,000", CONFIG, "must be an integer: write steps=1000"),
    "a comma in an option": (
        "tokenizer train {b}/text.txt -o {b}/o --vocab-size 30,000",
        USAGE,
        "--vocab-size 30,000 must be an integer: write --vocab-size=30000.",
    ),
    "longer than the positions": (
        f"{TUNE} max_length=512",
        CONFIG,
        "exceeds the 64 positions of {b}/m: write max_leng",
    ),
    "epochs of pre-training": (f"{PRETRAIN} epochs=3 batch_size=4", CONFIG, "its steps: write steps="),
    # options
    "no output folder": ("finetune {b}/m -t classification", USAGE, "Missing option '--output' / '-o' (Run folder;"),
    "a GPU by its generic name": (f"{TUNE} --device gpu", USAGE, "choose auto, cpu, cuda or mps; did you mean cuda?"),
    "a GPU by its number": (f"{TUNE} --device cuda:1", USAGE, "set CUDA_VISIBLE_DEVICES=1 and pass --device cuda"),
    "a device that is missing": (f"{TUNE} --device mps", USAGE, "finds only cpu: pass --device auto"),
    # inference
    "a model without a head": ("classify {b}/m iron", USAGE, "`bertsmith finetune MODEL --task classification`"),
    "no [MASK]": ("fill-mask {b}/m 'the smith'", USAGE, "write [MASK] in place of the word to predict"),
    "a question without its context": ("ask {b}/m who", USAGE, "Missing option '--context' / '-c' (Text"),
}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("mistakes")
    tiny_model(base)
    for name, text in {
        "train.csv": f"text,label\n{ROWS}",
        "columns.csv": "id,remark,grade,date\n1,the smith,a,x\n2,has iron,b,y\n",
        "unlabelled.csv": "text\nthe smith has red iron\n",
        "labels.csv": "text,label\nthe smith has red iron,iron\nthe smith has red gold,wood\n",
        "empty.csv": "",
        "empty.txt": "",
        "nfc.csv": f"text,label\n{ROWS}red iron,쇠\n",
        "nfd.csv": unicodedata.normalize("NFD", f"text,label\n{ROWS}red iron,쇠\n"),
        "squad.json": json.dumps({"data": [{"paragraphs": [{"qas": [{"is_impossible": True}]}]}]}),
    }.items():
        (base / name).write_text(text, encoding="utf-8")
    (base / "link.txt").symlink_to(base / "gone.txt")
    return base


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_explained_in_one_line(case: str, base: Path, shards: Path) -> None:
    line, status, part = MISTAKES[case]
    line, part = (text.format(b=base, shards=shards) for text in (line, part))
    done = call(*shlex.split(line))
    assert part in done.stderr
    assert done.returncode == status
    assert done.stderr.startswith("bertsmith: ")
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (base / "o").exists()
    assert not list(base.rglob("checkpoints"))
    assert not (shards / "checkpoints").exists()


PRETRAINING = {
    "lr=1e-3": "learning_rate=1e-3",
    "max_seq_length=64": "max_length=64",
    "max_seq_len=64": "max_length=64",
    "warmup_ratio=.2": "warmup=0.2",
    "weight_decay=0.1": "optimizer.weight_decay=0.1",
    "per_device_train_batch_size=8": "batch_size=8",
    "max_steps=7": "steps=7",
    "save_steps=7": "save_every=7",
    "eval_steps=7": "eval_every=7",
    "optimizer=lamb": "optimizer.kind=lamb",
}
FINETUNING = {"lr=1e-3": "learning_rate=1e-3", "num_train_epochs=2": "epochs=2", "num_epochs=2": "epochs=2"}


@pytest.mark.parametrize("given", PRETRAINING)
def test_other_names_of_settings_of_a_recipe(given: str) -> None:
    tiny = recipes.find("bert/tiny")
    name, _, value = given.partition("=")
    meant = with_overrides(tiny, [PRETRAINING[given]])
    assert with_overrides(tiny, [given]) == with_overrides(tiny, {name: config.parse_value(value)}) == meant != tiny


@pytest.mark.parametrize("given", FINETUNING)
def test_other_names_of_settings_of_fine_tuning(given: str) -> None:
    name, _, value = given.partition("=")
    words = make_finetune_config("classification", "m", {}, [given])
    meant = make_finetune_config("classification", "m", {}, [FINETUNING[given]])
    assert words == make_finetune_config("classification", "m", {}, {name: config.parse_value(value)}) == meant


def test_other_names_in_files_and_in_evaluation(tmp_path: Path) -> None:
    settings = EvaluationConfig(task=find_task("classification"))
    assert config.override(settings, ["max_seq_len=7"]).max_length == 7
    data = config.to_dict(recipes.find("bert/tiny"))
    assert config.from_dict(recipes.Recipe, {**without(data, "learning_rate"), "lr": 3e-3}).learning_rate == 3e-3
    with pytest.raises(ConfigError, match="lr is another name of learning_rate, which is set too: leave one out"):
        config.from_dict(recipes.Recipe, {**data, "lr": 3e-3})
    with pytest.raises(ConfigError, match=r'layers=4: recipe has no setting "layers"; did you mean encoder\.layers\?'):
        config.from_dict(recipes.Recipe, {**data, "layers": 4})
    with pytest.raises(ConfigError, match="learning_rate is given twice"):
        config.update(recipes.find("bert/tiny"), {"lr": 1e-3, "learning_rate": 1e-3})


def test_objectives_by_keyword_are_changed_or_replaced() -> None:
    tiny = recipes.find("bert/tiny")
    changed = with_overrides(tiny, {"objectives": {"masked_lm": {"mask_probability": 0.3}}})
    assert changed == with_overrides(tiny, ["objectives.masked_lm.mask_probability=0.3"])
    assert set(changed.objectives) == {"masked_lm", "next_sentence"}
    replaced = with_overrides(tiny, {"objectives": {"masked_lm": tiny.objectives["masked_lm"]}})
    assert replaced == with_overrides(tiny, ['objectives={masked_lm={kind="masked_lm"}}'])
    assert set(replaced.objectives) == {"masked_lm"}


def without(data: dict[str, object], key: str) -> dict[str, object]:
    return {name: value for name, value in data.items() if name != key}


@pytest.mark.parametrize("message", ["'30,000' is not a valid int range.", "valid integer, unable to parse string"])
def test_a_comma_in_a_number_is_explained_with_every_version_of_typer(message: str) -> None:
    option = SimpleNamespace(opts=["--vocab-size"], help="")
    error = SimpleNamespace(
        format_message=lambda: f"Invalid value for '--vocab-size': {message}", param=option, ctx=None
    )
    shown = usage_message(error, ["tokenizer", "train", "x", "--vocab-size", "30,000"])
    assert shown.startswith("--vocab-size 30,000 must be an integer: write --vocab-size=30000.")
