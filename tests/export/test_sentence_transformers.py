"""Folders for sentence-transformers have equal embeddings in both libraries; unsupported ones are rejected."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import call
from export.export_fixtures import KINDS
from export.export_fixtures import model as small_model
from faults.faulty_disks import FailingDisk
from model_fixtures import SIZE
from model_io.folder_fixtures import TEXTS, folder, tokenizer

import bertsmith
from bertsmith.errors import BertsmithError, StorageError
from bertsmith.export import sentence_transformers as exporting
from bertsmith.export.folder import ParityError
from bertsmith.export.sentence_transformers import export_sentence_transformers
from bertsmith.model_io.model_folder import save_model, verify_folder

LONG = [*TEXTS, "the cats " * 100, "서울은 한국의 " * 50]
WAYS = [(pooling, normalize) for pooling in ("mean", "first", "pooled") for normalize in (False, True)]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder(tmp_path_factory.mktemp("source") / "model")


@pytest.fixture(scope="module")
def exported(source: Path) -> Path:
    """Mean vectors of length 1."""
    output = source.with_name("exported")
    export_sentence_transformers(source, output, normalize=True)
    return output


def sentence_transformer(path: Path) -> Any:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(path), device="cpu")


def max_abs_diff(first: Any, second: Any) -> float:
    return float(np.abs(first - second).max())


@pytest.mark.parametrize(("pooling", "normalize"), WAYS)
def test_embeddings_equal_sentence_transformers(pooling: Any, normalize: bool, source: Path, tmp_path: Path) -> None:
    facts = export_sentence_transformers(source, tmp_path / "out", pooling=pooling, normalize=normalize)
    assert facts["max_abs_diff"] <= 1e-6
    wanted = bertsmith.load(source, device="cpu").encode(LONG, pooling=pooling, normalize=normalize)
    assert max_abs_diff(sentence_transformer(tmp_path / "out").encode(LONG), wanted) < 1e-5
    again = bertsmith.load(tmp_path / "out", device="cpu")
    assert again.sentence_settings.pooling == pooling
    assert max_abs_diff(again.encode(LONG), wanted) < 1e-6


def test_folders_of_sentence_transformers_are_loaded(exported: Path, tmp_path: Path) -> None:
    model = sentence_transformer(exported)
    model.save(str(tmp_path / "theirs"))
    again = bertsmith.load(tmp_path / "theirs", device="cpu")
    assert (again.sentence_settings.pooling, again.sentence_settings.normalize) == ("mean", True)
    assert max_abs_diff(again.encode(LONG), model.encode(LONG)) < 1e-5


@pytest.mark.parametrize("kind", KINDS)
def test_every_encoder(kind: str, tmp_path: Path) -> None:
    words = tokenizer()
    made = small_model(kind, vocab_size=SIZE, padding_id=words.padding_id)
    save_model(made, words, tmp_path / "model")
    export_sentence_transformers(tmp_path / "model", tmp_path / "out", pooling="first")
    wanted = bertsmith.load(tmp_path / "model", device="cpu").encode(TEXTS, pooling="first")
    assert max_abs_diff(bertsmith.load(tmp_path / "out", device="cpu").encode(TEXTS), wanted) < 1e-6
    assert max_abs_diff(sentence_transformer(tmp_path / "out").encode(TEXTS), wanted) < 2e-5


def test_command_line(source: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    done = call("export", source, "-o", output, "--to", "sentence-transformers", "--pooling", "first", "--normalize")
    assert done.returncode == 0, done.stderr
    assert "max abs diff" in done.stdout
    assert verify_folder(output) == ()
    assert 'library_name: "sentence-transformers"' in (output / "README.md").read_text(encoding="utf-8")
    found = json.loads(call("embed", output, "the cat", "--json").stdout)["vectors"]
    wanted = bertsmith.load(source, device="cpu").encode("the cat", pooling="first", normalize=True)
    assert max_abs_diff(np.array(found[0]), wanted) < 1e-6
    plain = json.loads(call("embed", output, "the cat", "--json", "--no-normalize").stdout)["vectors"]
    assert abs(np.linalg.norm(plain) - 1) > 1e-3


@pytest.mark.parametrize(
    ("flags", "words"),
    [(["--opset", "20"], "--opset"), (["--head", "vectors"], "--head"), (["--pooling", "median"], "mean, first, max")],
)
def test_invalid_options_are_one_line_errors(flags: list[str], words: str, source: Path, tmp_path: Path) -> None:
    done = call("export", source, "-o", tmp_path / "out", "--to", "sentence-transformers", *flags)
    assert done.returncode == 2
    assert words in done.stderr
    assert not list(tmp_path.iterdir())


def test_pooled_needs_a_pooler(tmp_path: Path) -> None:
    folder(tmp_path / "model", "tag", pooler=False)
    with pytest.raises(BertsmithError, match="no pooler"):
        export_sentence_transformers(tmp_path / "model", tmp_path / "out", pooling="pooled")


def test_different_embeddings_are_removed(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = exporting.SentenceSettings("first", False)
    kept = exporting.sentence_files
    monkeypatch.setattr(exporting, "sentence_files", lambda settings, encoder: kept(wrong, encoder))
    with pytest.raises(ParityError, match="differ"):
        export_sentence_transformers(source, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_disk_failures_leave_nothing_behind(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "_check_embeddings", lambda *_, **__: (0.0, "nothing"))
    failed = 0
    for number in range(0, 200, 7):
        try:
            export_sentence_transformers(source, tmp_path / "out", disk=FailingDisk(number, "ENOSPC"))
        except StorageError:
            failed += 1
            if (tmp_path / "out").exists():
                break
        else:
            break
    assert failed > 3
    assert verify_folder(tmp_path / "out") == ()


# Folders of other libraries.


def changed(exported: Path, path: Path, name: str, value: Any) -> Path:
    shutil.copytree(exported, path)
    (path / "checksums.json").unlink()
    (path / name).write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
    return path


STEP = "sentence_transformers.models."
ENCODER = {"path": "", "type": STEP + "Transformer"}


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("modules.json", "[", "not a list of modules"),
        ("modules.json", [{"path": ""}], "not a list of modules"),
        ("modules.json", [], "none"),
        ("modules.json", [{"path": "1_Pooling", "type": STEP + "WeightedLayerPooling"}], "WeightedLayerPooling"),
        ("modules.json", [ENCODER, {"path": "../x", "type": STEP + "Pooling"}], "not the name of a folder"),
        ("modules.json", [ENCODER | {"path": "../x"}, {"path": "1_Pooling", "type": STEP + "Pooling"}], "'../x'"),
        ("modules.json", [ENCODER, {"path": "x", "type": STEP + "Pooling"}], "missing"),
        ("1_Pooling/config.json", {"pooling_mode": "median"}, "median"),
        ("config_sentence_transformers.json", {"prompts": ["query"]}, "must map names to texts"),
        ("config_sentence_transformers.json", {"prompts": {}, "default_prompt_name": ["x"]}, "default_prompt_name"),
        ("sentence_bert_config.json", {"max_seq_length": "8"}, "max_seq_length"),
        ("sentence_bert_config.json", {"do_lower_case": 1}, "do_lower_case"),
        ("1_Pooling/config.json", {"pooling_mode": ["mean", "cls"]}, "mean"),
        (
            "1_Pooling/config.json",
            {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True},
            "is not supported",
        ),
        ("1_Pooling/config.json", {}, "nothing"),
        ("1_Pooling/config.json", "[]", "JSON object"),
    ],
)
def test_unsupported_modules_raise_in_encode(name: str, value: Any, words: str, exported: Path, tmp_path: Path) -> None:
    model = bertsmith.load(changed(exported, tmp_path / "strange", name, value), device="cpu")
    with pytest.raises(BertsmithError, match="choose the pooling") as found:
        model.encode("the cat")
    assert words in str(found.value)
    assert str(found.value).isprintable()
    assert model.encode("the cat", pooling="mean").shape == (32,)


def test_dense_layer_that_is_not_the_pooler(source: Path, tmp_path: Path) -> None:
    export_sentence_transformers(source, tmp_path / "out", pooling="pooled")
    other = folder(tmp_path / "other", seed=1)
    export_sentence_transformers(other, tmp_path / "out2", pooling="pooled")
    shutil.copy(tmp_path / "out2" / "2_Dense" / "model.safetensors", tmp_path / "out" / "2_Dense" / "model.safetensors")
    found = bertsmith.load(tmp_path / "out", device="cpu")
    assert (found.sentence_settings.pooling, len(found.sentence_settings.dense)) == ("first", 1)
    assert max_abs_diff(found.encode(LONG), sentence_transformer(tmp_path / "out").encode(LONG)) < 1e-5


def test_settings_are_kept_unless_the_caller_gives_others(source: Path, tmp_path: Path) -> None:
    export_sentence_transformers(source, tmp_path / "theirs", pooling="pooled", normalize=True)
    limits, prompts = tmp_path / "theirs" / "sentence_bert_config.json", {"query": "the ", "passage": "a "}
    (tmp_path / "theirs" / "checksums.json").unlink()
    limits.write_text(json.dumps({"max_seq_length": 6, "do_lower_case": True}))
    (tmp_path / "theirs" / "config_sentence_transformers.json").write_text(
        json.dumps({"prompts": prompts, "default_prompt_name": "query", "similarity_fn_name": "dot"})
    )
    facts = export_sentence_transformers(tmp_path / "theirs", tmp_path / "same")
    assert (facts["pooling"], facts["normalize"], facts["max_length"]) == ("pooled", True, 6)
    kept, other = (json.loads((tmp_path / name / limits.name).read_text()) for name in ("same", "theirs"))
    assert kept == other
    values = json.loads((tmp_path / "same" / "config_sentence_transformers.json").read_text())
    assert values == {"prompts": prompts, "default_prompt_name": "query", "similarity_fn_name": "dot"}
    export_sentence_transformers(tmp_path / "theirs", tmp_path / "other", pooling="max", normalize=False)
    settings = bertsmith.load(tmp_path / "other", device="cpu").sentence_settings
    assert (settings.pooling, settings.normalize, settings.dense, settings.max_length) == ("max", False, (), 6)


def test_prompts_on_the_command_line(exported: Path, tmp_path: Path) -> None:
    prompts = {"prompts": {"query": "the ", "passage": "a "}, "default_prompt_name": "query"}
    path = changed(exported, tmp_path / "prompts", "config_sentence_transformers.json", prompts)
    model = sentence_transformer(path)
    for flags, options in (
        ([], {}),
        (["--prompt", "passage"], {"prompt_name": "passage"}),
        (["--prompt", ""], {"prompt": ""}),
    ):
        found = json.loads(call("embed", path, "the cat", "--json", *flags).stdout)["vectors"]
        assert max_abs_diff(np.array(found[0]), model.encode("the cat", **options)) < 1e-5
    done = call("embed", path, "the cat", "--prompt", "other")
    assert done.returncode != 0
    assert "'query', 'passage'" in done.stderr


def test_hub_snapshot_with_links(exported: Path, tmp_path: Path) -> None:
    """Its files are links into blobs/, also those of modules."""
    blobs, snapshot = tmp_path / "cache" / "blobs", tmp_path / "cache" / "snapshots" / "abc"
    blobs.mkdir(parents=True)
    for number, path in enumerate(sorted(path for path in exported.rglob("*") if path.is_file())):
        shutil.copy(path, blobs / str(number))
        link = snapshot / path.relative_to(exported)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(blobs / str(number), link.parent))
    assert bertsmith.load(snapshot, device="cpu").sentence_settings.normalize
    (tmp_path / "elsewhere").mkdir()
    shutil.copy(exported / "1_Pooling" / "config.json", tmp_path / "elsewhere")
    strange = changed(exported, tmp_path / "strange", "README.md", "")
    shutil.rmtree(strange / "1_Pooling")
    (strange / "1_Pooling").symlink_to(tmp_path / "elsewhere")
    assert "is a link to another folder" in bertsmith.load(strange, device="cpu").sentence_settings.unread
