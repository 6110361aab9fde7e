"""`bench/family_gpu.py` and `bench/family_study.py` at the smallest size, on the CPU."""

from __future__ import annotations

import argparse
import fcntl
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from finetune_fixtures import COLOURS, METALS
from studies.study_fixtures import mrpc
from threads import threads

from bertsmith.data import prepare as run
from bertsmith.tokenizers.wordpiece import Config
from bertsmith.training import finetune as finetuning
from bertsmith.training import pretrain as pretraining
from bertsmith.training.pretrain_data import PretrainData, build_model
from bertsmith.training.step import Step
from bertsmith.training.trainer import Trainer

pytestmark = pytest.mark.xdist_group("family_bench")  # one process: its members are trained once
BENCH = Path(__file__).resolve().parents[2] / "bench"
SHAPE = ["encoder.layers=1", "encoder.width=32", "encoder.heads=2", "encoder.max_positions=64", "eval_rows=16"]
ROWS = ["max_length=32", "batch_size=8"]
FAMILIES = ("roberta", "albert", "electra")


@pytest.fixture(scope="module", autouse=True)
def bench_on_the_path() -> Iterator[None]:
    sys.path.insert(0, str(BENCH))
    with threads(1):
        yield
    sys.path.remove(str(BENCH))


@pytest.fixture(autouse=True)
def fixed_peak_flops(monkeypatch: pytest.MonkeyPatch) -> None:
    import family_gpu

    for module, name in (
        (family_gpu, "measure_peak_flops"),
        (pretraining, "measure_peak_flops"),
        (finetuning, "cached_peak_flops"),
    ):
        monkeypatch.setattr(module, name, lambda device, dtype: 1e9)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base, draw = tmp_path_factory.mktemp("family"), random.Random(0)
    documents = [
        "\n".join(f"the smith has {draw.choice(COLOURS)} {draw.choice(METALS)} and a thing." for _ in range(12))
        for _ in range(100)
    ]
    (base / "text.txt").write_text("\n\n".join(documents), encoding="utf-8")
    run.train_tokenizer([base / "text.txt"], base / "t", settings=Config(), vocab_size=160, workers=1, quiet=True)
    run.prepare([base / "text.txt"], base / "shards", tokenizer=base / "t", held_out=0.2, workers=1, quiet=True)
    return base / "shards"


def settings(*changes: str) -> list[str]:
    return [word for change in changes for word in ("--set", change)]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_peer_has_the_same_parameters(family: str, shards: Path) -> None:
    import family_gpu

    data, options = PretrainData.open(shards), argparse.Namespace(tokens=128, set=SHAPE)
    recipe = family_gpu.recipe_of(f"{family}/tiny/32", data, options)
    torch.manual_seed(0)
    peer, inputs = family_gpu.MODELS[family](recipe), family_gpu.random_batch(recipe, data.tokenizer.mask_id)
    count = sum(weight.numel() for weight in peer.parameters())
    assert count == sum(weight.numel() for weight in build_model(recipe, data.tokenizer).parameters())
    peer(**inputs).backward()
    assert all(weight.grad is not None for weight in peer.parameters())


def test_electra_labels_compare_samples_with_the_original_tokens(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import family_gpu

    data, options = PretrainData.open(shards), argparse.Namespace(tokens=128, set=SHAPE)
    recipe = family_gpu.recipe_of("electra/tiny/32", data, options)
    torch.manual_seed(0)
    peer, inputs = family_gpu.electra(recipe), family_gpu.random_batch(recipe, data.tokenizer.mask_id)
    masked, calls = inputs["labels"] != -100, dict[str, torch.Tensor]()
    evaluator = peer.discriminator.forward

    def watched(**arguments: Any) -> Any:
        calls.update(arguments)
        return evaluator(**arguments)

    monkeypatch.setattr(peer.discriminator, "forward", watched)
    favourite = int(inputs["labels"][masked][0])
    with torch.no_grad():
        peer.generator.generator_lm_head.bias[favourite] = 1e4  # is always guessed
    peer(**inputs)
    assert (calls["input_ids"][masked] == favourite).all()
    assert torch.equal(calls["input_ids"][~masked], inputs["input_ids"][~masked])
    assert not calls["labels"][~masked].any()
    assert torch.equal(calls["labels"][masked], (inputs["labels"][masked] != favourite).long())
    assert not calls["labels"].all()
    assert calls["labels"].any()


def test_one_line_per_candidate(shards: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import family_gpu

    arguments = ["--peers", "eager", "--device", "cpu", "--tokens", "64", "--steps", "1", "--rounds", "2"]
    cases = [f"{family}/tiny/32" for family in FAMILIES]
    masks = family_gpu.main([str(shards), "--cases", *cases, *arguments, *settings(*SHAPE)])
    lines = capsys.readouterr().out.splitlines()[2:]
    assert [line.split()[0] for line in lines] == [case for case in cases for _ in range(2)]
    for case, line in zip(cases, lines[1::2], strict=True):
        ratio = masks[case]["bertsmith"] / masks[case]["transformers eager"]
        assert float(line.split()[-1]) == pytest.approx(ratio, abs=0.006)


def study(*arguments: object) -> int:
    import family_study

    return int(family_study.main([str(word) for word in arguments]))


@pytest.mark.slow
def test_the_family_study_runs_end_to_end(shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, names = tmp_path / "out", ["bert", "roberta", "albert", "electra"]
    how = ["--data", shards, "-o", out, "--minutes", 0.012, "--device", "cpu", "--quiet", *settings(*SHAPE, *ROWS)]
    tasks = ["-t", "glue/mrpc", "--data", mrpc(tmp_path / "glue", 32), "-o", out, "--seeds", 2, "--device", "cpu"]
    tasks += ["--quiet", *settings("epochs=1", "batch_size=16", "max_length=32")]
    assert study("tasks", *tasks) == 78
    assert "bert is not finished" in capsys.readouterr().err
    assert study("pretrain", *names, *how, "--set", "electra:learning_rate=2e-3") == 0
    assert study("pretrain", *names, *how, "--set", "electra:learning_rate=2e-3") == 0
    assert "electra is finished" in capsys.readouterr().out
    assert study("pretrain", "bert", *how, "--set", "gpt:learning_rate=1") == 78
    assert "gpt is not a member" in capsys.readouterr().err
    assert study("tasks", "bert", "bert+fresh", *tasks) == 0
    assert study("tasks", *tasks) == 0
    assert study("table", "-o", out) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    assert rows[0][-1] == "glue/mrpc, accuracy"
    assert [row[0] for row in rows[2:]] == [*names, "bert+fresh", "no text"]
    assert all("±" in row[-1] for row in rows[2:-1])
    assert "masked_lm" in rows[2][6]
    assert "replaced_token" in rows[5][6]
    assert sum("finished" in line for line in lines) == 4


def test_a_run_waits_for_the_lock_before_its_clock_starts(tmp_path: Path) -> None:
    from family_study import locking_trainer

    file = tmp_path / "lock"
    with file.open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        for _ in range(2):  # one run after the other, in the same process
            began = time.monotonic()
            threading.Timer(0.3, fcntl.flock, (other, fcntl.LOCK_UN)).start()
            with locking_trainer(file) as trainer_class:
                run = object.__new__(trainer_class)
                run.forward_backward, run.world = (
                    SimpleNamespace(compiles=True),
                    SimpleNamespace(device=torch.device("cpu")),
                )
                run.stop_signal, run._warm, run._clock = SimpleNamespace(requested=False), False, time.monotonic
                run._warm_up()
                with pytest.raises(BlockingIOError):
                    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
            assert run._began - began >= 0.3
            assert run._warm
    with locking_trainer(None) as trainer_class:
        assert trainer_class is Trainer


@pytest.mark.slow
def test_minutes_continue_after_a_resume(shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "pretrain",
        "albert",
        "--data",
        shards,
        "-o",
        tmp_path,
        "--minutes",
        0.03,
        "--device",
        "cpu",
        "--quiet",
    ]
    arguments += settings(*SHAPE, *ROWS)
    original = Trainer.__next__

    def stopping(trainer: Trainer) -> Step:
        if trainer.steps_done == 3:
            signal.raise_signal(signal.SIGTERM)
        return original(trainer)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "__next__", stopping)
        assert study(*arguments) == 75
    assert study("table", "-o", tmp_path) == 0
    assert "albert/small, stopped" in capsys.readouterr().out
    assert study(*arguments) == 0
    assert study("table", "-o", tmp_path) == 0
    assert "albert/small, finished, 0.03 of 0.03 minutes" in capsys.readouterr().out


def masks_of_a_compiled_peer() -> list[object]:
    """The attention masks in the graph of the compiled peer."""
    import transformers

    torch.compiler.reset()
    shape = transformers.BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16
    )
    shape._attn_implementation = "sdpa"
    masks: list[object] = []

    def record(graph: Any, examples: object) -> Any:
        for node in graph.graph.nodes:
            if "scaled_dot_product_attention" in str(node.target):
                masks.append(node.kwargs["attn_mask"])
        return graph.forward

    torch.compile(transformers.BertModel(shape), backend=record)(input_ids=torch.arange(10).view(2, 5))
    torch.compiler.reset()
    return masks


def test_a_compiled_peer_attends_without_a_mask_where_none_is_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    import needless_masks
    from transformers import masking_utils

    monkeypatch.setattr(
        masking_utils, needless_masks.CHECK, lambda *inputs, **named: False
    )  # as 5.17 when it is traced
    assert len(masks_of_a_compiled_peer()) == 2
    assert None not in masks_of_a_compiled_peer()
    for _ in range(2):
        needless_masks.skip_needless_masks()
        assert masks_of_a_compiled_peer() == [None, None]
