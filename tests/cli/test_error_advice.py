"""Advice in errors is followed literally: the command with the advice applied succeeds, or fails for another reason."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from command_line import Done, call
from finetune_fixtures import made_up, tiny_model, write

from bertsmith import recipes
from bertsmith.model_io.model_folder import open_model, save_model
from bertsmith.model_io.run_folder import RECIPE
from bertsmith.training.recipe import Recipe, with_overrides

INIT, TASK = "init bert/tiny", "init --task classification"
TUNE = "finetune {b}/m -t classification --train {b}/train.jsonl -o {o} -q --device cpu epochs=0.02 batch_size=16"
PRETRAIN = "pretrain bert/tiny -d {shards} -o {o} -q --device cpu steps=1 batch_size=4 max_length=32 eval_rows=2"
# The command; the part that the advice replaces ("": the advice is added, "*": it is the whole command); the advice in
# the error, in brackets.
ADVICE: dict[str, tuple[str, str, str]] = {
    # settings
    "a nested setting": (f"{INIT} layers=4", "layers=4", r"did you mean (\S+)\?"),
    "a misspelt nested setting": (f"{INIT} encodr.layer=4", "encodr.layer=4", r"did you mean (\S+)\?"),
    "a setting of the task": (f"{TASK} label=stars", "label=stars", r"did you mean (\S+)\?"),
    "warmup_steps": (f"{INIT} warmup_steps=500", "warmup_steps=500", r"write (\S+)"),
    "warmup_steps of fine-tuning": (f"{TASK} warmup_steps=500", "warmup_steps=500", r"write (\S+)"),
    "accumulation": (f"{INIT} gradient_accumulation_steps=4", "gradient_accumulation_steps=4", r"write (\S+)"),
    "fp16": (f"{INIT} fp16=true", "fp16=true", r"write (\S+)"),
    "num_layers": (f"{INIT} num_layers=4", "num_layers=4", r"write (\S+)"),
    "hidden_size": (f"{INIT} encoder.hidden_size=64", "encoder.hidden_size=64", r"write (\S+)"),
    "intermediate_size": (f"{INIT} intermediate_size=64", "intermediate_size=64", r"write (\S+)"),
    "steps of fine-tuning": (f"{TASK} max_steps=500", "max_steps=500", r"write (\S+)"),
    "evaluations of fine-tuning": (f"{TASK} eval_steps=500", "eval_steps=500", r"write (\S+)"),
    "frozen layers": (f"{TASK} freeze=true", "freeze=true", r"write ('.*')"),
    "epochs without data": (f"{INIT} epochs=3", "epochs=3", r"write (\S+)"),
    "epochs": (f"{PRETRAIN} epochs=0.01", "epochs=0.01", r"write (steps=\d+) "),
    "a thousand": (f"{INIT} steps=1,000", "steps=1,000", r"write (\S+)"),
    "Python's True": (f"{INIT} compute.fsdp=True", "compute.fsdp=True", r"write (\S+)"),
    "spaces": (f"{INIT} steps = 7", "steps = 7", r"write (\S+) without"),
    "another kind": (f"{INIT} encoder.kind=modernbert", "modernbert", r"did you mean (\S+)\?"),
    "another value": (f"{INIT} precision=fp16", "fp16", r"did you mean (\S+)\?"),
    "an activation": (f"{INIT} encoder.activation=gelu_nwe", "gelu_nwe", r"did you mean (\S+)\?"),
    "rows beyond the positions": (f"{INIT} max_length=600", "max_length=600", r"write (\S+) or"),
    "more positions": (f"{INIT} max_length=600", "", r"or (encoder\.max_positions=\S+)"),
    "fp8 with FSDP": (f"{INIT} precision=fp8 compute.fsdp=true", "precision=fp8", r"set (\S+)"),
    "no warm-up": (f"{TASK} warmup=0 schedule.kind=inverse_root", "warmup=0", r"set (\S+)"),
    "micro-batches": (f"{PRETRAIN} micro_batch_size=3", "micro_batch_size=3", r"write (\S+)"),
    "micro-batches of fine-tuning": (f"{TUNE} micro_batch_size=6", "micro_batch_size=6", r"write (\S+)"),
    "beyond the model's positions": (f"{TUNE} max_length=99", "max_length=99", r"write (\S+)"),
    "pooling of another layer": (f"{TUNE} head.layers=all_sum head.pooling=pooler", "", r"use (\S+)"),
    "a sweep without dev": (f"{TUNE} --seeds 2", "", r"training examples: (\S+)"),
    "a single document": (
        "pretrain bert/tiny -d {b}/single -o {o} -q --device cpu steps=1 batch_size=2",
        "",
        r"set (\S+)",
    ),
    "examples as a setting": (f"{TUNE} {{b}}/remarks.csv", " {b}/remarks.csv", r"pass training examples with( .*)"),
    "the column of the text": (f"{TUNE} --train {{b}}/remarks.csv", "", r"set (task\.text=COLUMN)"),
    "a file without a header": (
        f"{TUNE} --train {{b}}/plain.csv",
        "",
        r"or (task\.header=false).* (task\.text=column\d)",
    ),
    # names and options
    "a setting as an option": (f"{TUNE} --epochs 0.01", "--epochs 0.01", r"write (\S+) without"),
    "a recipe": ("init bert/tinny", "bert/tinny", r"did you mean (\S+)\?"),
    "a task as a recipe": ("init classification", "classification", r"pass (.+)"),
    "a task": ("init --task sst2", "sst2", r"did you mean (\S+)\?"),
    "an existing recipe": (f"{INIT} -o {{b}}/there.toml", "", r"pass (\S+)"),
    "a run as a recipe": ("init {b}/run", "{b}/run", r"pass its recipe, (\S+)"),
    "a device": (f"{TUNE} --device mps", "--device mps", r"pass (.+)"),
    # files
    "text as shards": (PRETRAIN.replace("{shards}", "{b}/text.txt"), "*", r"`bertsmith (prepare .* -o DIR)`"),
    "another field": (
        "prepare {b}/texts.jsonl -t {b}/t -o {o} -q",
        "",
        r"pass another (--field).* did you mean (\S+)\?",
    ),
    "another encoding": ("prepare {b}/latin.txt -t {b}/t -o {o} -q", "", r"or (--errors replace)"),
    "an existing set": ("prepare {b}/text.txt -t {b}/t -o {b}/single -q", "", r"pass (\S+)"),
    "a file of a model": ("embed {b}/m/config.json iron", "{b}/m/config.json", r"pass its folder, (\S+)"),
    "a model without a tokenizer": ("embed {b}/bare iron", "", r"with (--tokenizer DIR)"),
    # inference
    "no mask": ("fill-mask {b}/m 'it is WORD'", "WORD", r"write (\S+) in place"),
    "a model without the head": ("classify {b}/m iron", "*", r"`bertsmith (finetune MODEL --task classification)`"),
    "no task": ("evaluate {b}/m --dev {b}/train.jsonl", "", r"pass (--task), such as (\S+)"),
}
ANOTHER_ERROR = {
    "examples as a setting": "no column for the text",
    "a file without a header": "set task.label=COLUMN",
    "no task": "has no head for glue/cola",
    "a model without the head": "Missing option '--output'",
}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("advice")
    tiny_model(base)
    write(base / "train.jsonl", made_up("classification", 32, 0))
    (base / "texts.jsonl").write_text('{"texts": "the smith has iron"}\n', encoding="utf-8")
    (base / "latin.txt").write_bytes("the smith has gr\xfcn iron".encode("latin-1"))
    (base / "one.txt").write_text("the smith has iron\nthe smith has gold\n" * 9, encoding="utf-8")
    (base / "remarks.csv").write_text("id,remark,label,date\n1,iron,a,x\n2,gold,b,y\n", encoding="utf-8")
    (base / "plain.csv").write_text("1,iron,a,x\n2,gold,b,y\n", encoding="utf-8")
    (base / "there.toml").touch()
    (base / "run").mkdir()
    (base / "run" / RECIPE).write_bytes(small_recipe().to_json())
    made = call("prepare", base / "one.txt", "-t", base / "t", "-o", base / "single", "-q", "--held-out", 0)
    assert made.returncode == 0, made.stderr
    model, tokenizer, _ = open_model(base / "m")
    save_model(model, tokenizer, base / "bare")
    for name in ("tokenizer.json", "vocab.txt", "tokenizer_config.json", "checksums.json", "special_tokens_map.json"):
        (base / "bare" / name).unlink(missing_ok=True)
    return base


def small_recipe() -> Recipe:
    return with_overrides(recipes.find("bert/tiny"), ["steps=7"])


def run(line: str) -> Done:
    done = call(*shlex.split(line))
    assert "Traceback" not in done.stderr
    return done


@pytest.mark.parametrize("case", ADVICE)
def test_advice_works_when_it_is_followed(case: str, base: Path, shards: Path, tmp_path: Path) -> None:
    line, part, pattern = ADVICE[case]
    line, part = (text.format(b=base, shards=shards, o=tmp_path / "o") for text in (line, part))
    first = run(line)
    assert first.returncode != 0
    found = re.search(pattern, first.stderr.strip())
    assert found, first.stderr
    advice = " ".join(found.groups()).rstrip(".,;)")
    for placeholder, value in {
        "-o DIR": f"-o {tmp_path}/o",
        "DIR": f"{base}/t",
        "MODEL": f"{base}/m",
        "COLUMN": "remark",
    }.items():
        advice = advice.replace(placeholder, value)
    then = run(advice if part == "*" else line.replace(part, advice) if part else f"{line} {advice}")
    if case in ANOTHER_ERROR:
        assert ANOTHER_ERROR[case] in then.stderr
    else:
        assert then.returncode == 0, f"{first.stderr}{advice}\n{then.stderr}"
