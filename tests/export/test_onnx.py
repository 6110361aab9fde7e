"""ONNX exports reproduce the model; exports that differ are removed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir
import onnxruntime
import pytest
import tokenizers
from command_line import call
from export.export_fixtures import KINDS, model
from export.test_graph import HEADS
from faults.faulty_disks import FailingDisk
from model_io.folder_fixtures import TEXTS, folder

import bertsmith
from bertsmith.errors import StorageError
from bertsmith.export import graph as graphs
from bertsmith.export import onnx
from bertsmith.export.folder import ParityError
from bertsmith.export.graph import OnnxFiles, OnnxModule, convert
from bertsmith.export.onnx import ParityCheck, measure_parity
from bertsmith.model_io.model_folder import verify_folder
from bertsmith.objectives import classify, masked_lm, next_sentence, span, tag

pytestmark = pytest.mark.xdist_group("onnx")  # one process: conversions take seconds
LABELS = ("cold", "warm", "hot")


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder(tmp_path_factory.mktemp("judge") / "model", classify.Config(labels=LABELS), layers=1)


@pytest.fixture(scope="module")
def exported(judge: Path) -> tuple[Path, Any]:
    """The folder that the command line wrote, and its output."""
    output = judge.with_name("exported")
    return output, call("export", judge, "-o", output, "--to", "onnx")


def written(path: Path, converted: OnnxFiles) -> Path:
    path.write_bytes(converted.model)
    if converted.weights is not None:
        path.with_name("model.onnx_data").write_bytes(b"".join(converted.weights))
    return path


def test_export_command_reports_parity(exported: tuple[Path, Any]) -> None:
    output, done = exported
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    for words in ("40 tokens", "1 tokens", "max abs diff", "input_ids, attention_mask, token_type_ids", "opset"):
        assert words in done.stdout
    names = {"README.md", "checksums.json", "config.json", "model.onnx", "special_tokens_map.json"}
    assert {path.name for path in output.iterdir()} == names | {"tokenizer.json", "tokenizer_config.json", "vocab.txt"}
    assert verify_folder(output) == ()
    assert not output.with_name("exported.partial").exists()
    card = (output / "README.md").read_text(encoding="utf-8")
    assert "text-classification" in card
    assert "3 texts of up to 40 tokens, padded" in card


def test_onnxruntime_and_tokenizers_reproduce_predictions(judge: Path, exported: tuple[Path, Any]) -> None:
    output, _ = exported
    tokenizer = tokenizers.Tokenizer.from_file(str(output / "tokenizer.json"))
    tokenizer.enable_padding()
    found = tokenizer.encode_batch(TEXTS)
    session = onnxruntime.InferenceSession(str(output / "model.onnx"))
    inputs = {
        "input_ids": np.array([one.ids for one in found]),
        "attention_mask": np.array([one.attention_mask for one in found]),
        "token_type_ids": np.array([one.type_ids for one in found]),
    }
    (logits,) = session.run(["logits"], inputs)
    shares = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    likely = bertsmith.load(judge, device="cpu").predict_proba(TEXTS)
    assert np.abs(shares - likely).max() < 1e-5


def test_axes_are_named_and_metadata_is_stripped(exported: tuple[Path, Any]) -> None:
    path = exported[0] / "model.onnx"
    session = onnxruntime.InferenceSession(str(path))
    assert [one.shape for one in session.get_inputs()] == [["batch_size", "sequence_length"]] * 3
    assert [(one.name, one.shape) for one in session.get_outputs()] == [("logits", ["batch_size", 3])]
    data = path.read_bytes()
    for word in (b".py", str(Path.cwd()).encode(), b"torch"):
        assert word not in data


@pytest.mark.slow
def test_external_weights(
    exported: tuple[Path, Any], judge: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = onnx_ir.load(exported[0] / "model.onnx")
    monkeypatch.setattr(graphs, "_trace", lambda graph, opset: whole)  # which takes its time
    facts = onnx.export_onnx(judge, tmp_path / "out", max_inline_bytes=1000)
    assert facts["max_abs_diff"] < 1e-5
    files = {path.name: path.stat().st_size for path in (tmp_path / "out").iterdir()}
    assert files["model.onnx"] + files["model.onnx_data"] == facts["bytes"]
    assert files["model.onnx"] < files["model.onnx_data"]
    assert verify_folder(tmp_path / "out") == ()
    monkeypatch.setattr(graphs, "_trace", lambda graph, opset: onnx_ir.load(exported[0] / "model.onnx"))
    onnx.export_onnx(judge, tmp_path / "again")
    assert (tmp_path / "again" / "model.onnx").read_bytes() == (exported[0] / "model.onnx").read_bytes()


@pytest.mark.slow
def test_several_heads_in_one_graph(tmp_path: Path) -> None:
    heads = [masked_lm.Config(), next_sentence.Config(), tag.Config(labels=LABELS), span.Config()]
    graph = OnnxModule(model("bert", *heads)).eval()
    path = written(tmp_path / "model.onnx", convert(graph, max_inline_bytes=1000))
    found = measure_parity(graph, path, vocab_size=97, padding_id=0)
    assert {len(set(one.lengths)) > 1 for one in found} == {False, True}
    assert max(one.max_abs_diff for one in found) < 2e-5


@pytest.mark.slow
@pytest.mark.parametrize("name", HEADS)
def test_every_head(name: str, tmp_path: Path) -> None:
    graph = OnnxModule(model("bert", *HEADS[name][0])).eval()
    converted = convert(graph)
    found = measure_parity(graph, written(tmp_path / "model.onnx", converted), vocab_size=97, padding_id=0)
    assert max(one.max_abs_diff for one in found) < 2e-5


@pytest.mark.slow
def test_the_same_model_gives_the_same_bytes(judge: Path, exported: tuple[Path, Any], tmp_path: Path) -> None:
    onnx.export_onnx(judge, tmp_path / "exported")
    for path in exported[0].iterdir():
        assert (tmp_path / "exported" / path.name).read_bytes() == path.read_bytes(), path.name


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "opset"), [*((kind, 20) for kind in KINDS), ("bert", 18), ("bert", 23)])
def test_every_encoder(kind: str, opset: int, tmp_path: Path) -> None:
    graph = OnnxModule(model(kind, masked_lm.Config())).eval()
    path = written(tmp_path / "model.onnx", convert(graph, opset=opset))
    assert max(one.max_abs_diff for one in measure_parity(graph, path, vocab_size=97, padding_id=0)) < 2e-5


def given(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    """Replaces the conversion, which is slow, by these bytes."""
    monkeypatch.setattr(onnx, "convert", lambda graph, **_: OnnxFiles(data, None))


def test_export_that_differs_is_removed(
    judge: Path, exported: tuple[Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given(monkeypatch, (exported[0] / "model.onnx").read_bytes())
    other = folder(tmp_path / "other", classify.Config(labels=LABELS), layers=1, seed=1)
    done = call("export", other, "-o", tmp_path / "out", "--to", "onnx")
    assert done.returncode == ParityError.exit_code == 70
    assert "differs from the model" in done.stderr
    assert done.stderr.count("\n") == 1
    assert {path.name for path in tmp_path.iterdir()} == {"other"}
    onnx.export_onnx(judge, tmp_path / "out")  # it equals its own model
    assert (tmp_path / "out").is_dir()
    given(monkeypatch, (exported[0] / "model.onnx").read_bytes())
    with pytest.raises(ParityError):
        onnx.export_onnx(judge, tmp_path / "stricter", tolerance=0.0)
    assert not (tmp_path / "stricter").exists()


def test_disk_failures_leave_nothing_behind(
    judge: Path, exported: tuple[Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given(monkeypatch, (exported[0] / "model.onnx").read_bytes())
    monkeypatch.setattr(onnx, "measure_parity", lambda *_, **__: [ParityCheck((1,), {"logits": (0.0, 1.0)})])
    failed = 0
    for number in range(0, 200, 3):
        try:
            onnx.export_onnx(judge, tmp_path / "out", disk=FailingDisk(number, "ENOSPC"))
        except StorageError:
            failed += 1
            if (tmp_path / "out").exists():  # it failed in the sync after the rename
                assert verify_folder(tmp_path / "out") == ()
                break
        else:
            break
    assert failed > 5
    assert verify_folder(tmp_path / "out") == ()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--opset", "9"], "18 to 23"),
        (["--normalize"], "--pooling"),
        (["--pooling", "mean", "--head", "classify"], "leave out one of them"),
        (["--head", "span"], "span"),
        (["--head", "heat"], "heat"),
        (["--to", "tflite"], "choose one of onnx, sentence-transformers, word2vec"),
    ],
)
def test_invalid_options_are_one_line_errors(flags: list[str], words: str, judge: Path, tmp_path: Path) -> None:
    flags = flags if "--to" in flags else [*flags, "--to", "onnx"]
    done = call("export", judge, "-o", tmp_path / "out", *flags)
    assert done.returncode in (2, 65, 78)
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_existing_folders_are_kept(judge: Path, exported: tuple[Path, Any]) -> None:
    done = call("export", judge, "-o", exported[0], "--to", "onnx")
    assert done.returncode == 2
    assert "exists" in done.stderr


def test_missing_onnx_packages(judge: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    done = call("export", judge, "-o", tmp_path / "out", "--to", "onnx")
    assert done.returncode == 2
    assert "pip install 'bertsmith[onnx]'" in done.stderr
