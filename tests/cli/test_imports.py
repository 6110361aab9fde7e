"""Commands that apply a model start fast: they import nothing that they do not need."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from inference.predictor_fixtures import KINDS, reader, saved_predictor, tokenizer

from bertsmith.model_io.model_folder import save_model
from bertsmith.objectives import choose, classify, masked_lm, next_sentence

HEAVY = {
    *("torch._dynamo", "torch._inductor", "torch.distributed.fsdp", "torch.onnx", "sympy", "triton", "transformers"),
    *("pyarrow", "pandas", "scipy", "sklearn", "fastapi", "starlette", "uvicorn", "httpx", "onnx", "onnxruntime"),
    *("tensorboard", "wandb", "mlflow", "ray", "safetensors", "rich.progress", "rich.markdown", "pygments"),
    *("bertsmith.training", "bertsmith.recipes", "bertsmith.evaluation", "bertsmith.studies", "bertsmith.export"),
    *("bertsmith.server.app", "bertsmith.data.shards", "bertsmith.data.prepare", "bertsmith.tasks.glue"),
}


def started(*commands: list[object]) -> set[str]:
    """The modules of one process that has run these commands."""
    script = (
        "import contextlib, io, json, sys\n"
        "from bertsmith import cli\n"
        "for words in json.loads(sys.argv[1]):\n"
        "    sys.argv[1:] = words\n"
        "    with contextlib.redirect_stdout(io.StringIO()):\n"
        "        try: cli.main()\n"
        "        except SystemExit as end: assert not end.code, words\n"
        "print(json.dumps(list(sys.modules)))"
    )
    words = json.dumps([[str(word) for word in command] for command in commands])
    done = subprocess.run([sys.executable, "-c", script, words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout))


def test_commands_that_apply_a_model_import_nothing_heavy(tmp_path: Path) -> None:
    """Among them torch's compiler, which takes two seconds, and pyarrow."""
    saved_predictor(tmp_path / "words", masked_lm.Config(), next_sentence.Config())
    saved_predictor(tmp_path / "labels", classify.Config(labels=KINDS))
    saved_predictor(tmp_path / "choices", choose.Config())
    for head in ("tag", "span"):
        one = reader().model
        for name in set(one.objectives) - {head}:
            del one.objectives[name]
        save_model(one, tokenizer(), tmp_path / head)
    (tmp_path / "texts.txt").write_text("the smith\nred iron", encoding="utf-8")
    modules = started(
        ["fill-mask", tmp_path / "words", "the [MASK] has"],
        ["next-sentence", tmp_path / "words", "the smith", "has iron"],
        ["embed", tmp_path / "labels", tmp_path / "texts.txt", "-o", tmp_path / "vectors.npy"],
        ["classify", tmp_path / "labels", "the smith", "--json"],
        ["ner", tmp_path / "tag", "red iron"],
        ["ask", tmp_path / "span", "which thing", "-c", "red iron"],
        ["choose", tmp_path / "choices", "the", "smith", "iron"],
        ["rank", tmp_path / "labels", "iron", tmp_path / "texts.txt"],
        ["attention", tmp_path / "labels", "the smith"],
        ["show", tmp_path / "labels"],
    )
    assert sorted(HEAVY & modules) == []
    assert "torch" in modules


def test_a_kind_is_found_without_importing_the_others() -> None:
    script = (
        "import sys\nfrom bertsmith import config\nconfig.find_kind('bertsmith.tasks', 'glue')\n"
        "print(*(name for name in sys.modules if name.startswith('bertsmith.tasks.')))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert not {"bertsmith.tasks.squad", "bertsmith.tasks.conll", "bertsmith.tasks.korean"} & set(done.stdout.split())
