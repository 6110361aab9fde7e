"""Pickled weights of all versions of torch are read by a sandboxed child process."""

from __future__ import annotations

import io
import json
import os
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from model_io.folder_fixtures import TABLE, foreign, model, one_line, same_weights
from safetensors.torch import load_file

from bertsmith.errors import BertsmithError, DataError
from bertsmith.model_io import importers
from bertsmith.model_io.importers import import_folder
from bertsmith.model_io.model_folder import open_model
from bertsmith.model_io.unpickling import named_tensors

# Tries inside the sandbox what code in a pickle might do; prints what was possible.
BURGLAR = """
import os, socket, sys
from bertsmith.model_io import unpickling

def run_a_program():
    if os.system("echo ran > " + sys.argv[1]):
        raise OSError

acts = {
    "read a file": lambda: open("/etc/passwd").read(),
    "write a file": lambda: open(sys.argv[1], "w"),
    "write to an open file": lambda: os.write(int(sys.argv[2]), b"!"),
    "make a socket": socket.socket,
    "run a program": run_a_program,
    "take much memory": lambda: bytearray(2 << 30),
}
unpickling.import_everything()
if len(sys.argv) < 4:
    unpickling.limit(1 << 20)
for what, act in acts.items():
    try:
        act()
    except (OSError, MemoryError):
        continue
    print(what)
"""


class Runs:
    """Unpickled, it runs a command."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (self.command,)


def pickled(path: Path) -> Path:
    """An old folder: pytorch_model.bin with tied and integer tensors."""
    foreign(path)
    tensors = load_file(path / "model.safetensors")
    (path / "model.safetensors").unlink()
    tensors["cls.predictions.decoder.weight"] = tensors[TABLE]
    tensors["bert.embeddings.position_ids"] = torch.arange(40)[None]
    torch.save(tensors, path / "pytorch_model.bin")
    return path


def test_a_pickled_folder(tmp_path: Path) -> None:
    source = pickled(tmp_path / "old")
    facts = import_folder(source, tmp_path / "m")
    assert facts.verified
    assert facts.notes == ()
    same_weights(open_model(tmp_path / "m")[0], model("masked_lm", "next_sentence"))
    assert sorted(os.listdir(tmp_path)) == ["m", "old"]


def test_several_pickled_files(tmp_path: Path) -> None:
    """One of them as torch wrote it before version 1.6, which is not a zip file."""
    source = pickled(tmp_path / "old")
    tensors = torch.load(source / "pytorch_model.bin", weights_only=True)
    (source / "pytorch_model.bin").unlink()
    where = {name: f"pytorch_model-{number % 2}.bin" for number, name in enumerate(tensors)}
    for new, file in enumerate(sorted(set(where.values()))):
        part = {name: value for name, value in tensors.items() if where[name] == file}
        torch.save(part, source / file, _use_new_zipfile_serialization=bool(new))
    (source / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": where}))
    import_folder(source, tmp_path / "m")
    same_weights(open_model(tmp_path / "m")[0], model("masked_lm", "next_sentence"))


def test_a_safetensors_folder_is_rewritten(tmp_path: Path) -> None:
    source = foreign(tmp_path / "theirs")
    facts = import_folder(source, tmp_path / "m")
    assert facts.verified
    assert "imported from | theirs" in (tmp_path / "m" / "README.md").read_text()
    same_weights(open_model(tmp_path / "m")[0], model("masked_lm", "next_sentence"))


def test_an_existing_output_is_refused_before_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = pickled(tmp_path / "old")
    monkeypatch.setattr(importers, "_unpickled", None)
    with pytest.raises(BertsmithError, match="old exists"):
        import_folder(source, source)
    with pytest.raises(DataError, match="nowhere is not a folder"):
        import_folder(tmp_path / "nowhere", tmp_path / "m")
    (tmp_path / "empty").mkdir()
    kinds = (
        r"neither model\.safetensors, pytorch_model\.bin, params_0\.npy, a TensorFlow checkpoint nor ELMo's two files"
    )
    with pytest.raises(DataError, match=kinds):
        import_folder(tmp_path / "empty", tmp_path / "m")


def bomb() -> bytes:
    """A zip file as torch writes it, in which 800 MiB of zeros are compressed."""
    file = io.BytesIO()
    torch.save({"weight": torch.zeros(512)}, file)
    result = io.BytesIO()
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(result, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as new:
        for name in old.namelist():
            with new.open(name, "w", force_zip64=True) as entry:
                if name.endswith("/data/0"):
                    for _ in range(800):
                        entry.write(bytes(1 << 20))
                else:
                    entry.write(old.read(name))
    return result.getvalue()


def expanded() -> bytes:
    """One number that claims to be a tensor of a million million."""
    file = io.BytesIO()
    torch.save({TABLE: torch.zeros(1).expand(10**12)}, file)
    return file.getvalue()


HOSTILE: dict[str, tuple[Any, str]] = {
    "runs a command": (lambda canary: pickle.dumps(Runs(f"touch {canary}")), "cannot be imported"),
    "zip bomb": (lambda _: bomb(), "cannot be imported"),
    "expanded": (lambda _: expanded(), "need 4,000,000,000,000 bytes"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_malicious_pickles_are_refused(case: str, tmp_path: Path) -> None:
    source, canary = pickled(tmp_path / "old"), tmp_path / "canary"
    make, words = HOSTILE[case]
    (source / "pytorch_model.bin").write_bytes(make(canary))
    with pytest.raises(DataError) as found:
        import_folder(source, tmp_path / "m")
    one_line(found, str(source / "pytorch_model.bin"), words)
    assert os.listdir(tmp_path) == ["old"], "nothing is left behind, and nothing was run"


def test_the_child_process_is_sandboxed(tmp_path: Path) -> None:
    """The sandbox blocks what torch's restricted unpickler would let through; without it, everything is possible."""
    with open(tmp_path / "open", "wb") as file:
        command = [sys.executable, "-c", BURGLAR, str(tmp_path / "target"), str(file.fileno())]
        how: dict[str, Any] = {"capture_output": True, "text": True, "check": True, "pass_fds": [file.fileno()]}
        assert subprocess.run(command, **how).stdout == ""
        assert os.listdir(tmp_path) == ["open"]
        assert len(subprocess.run([*command, "unlimited"], **how).stdout.splitlines()) == 6


def test_pickles_that_are_not_state_dicts() -> None:
    for state in ([1, 2], {}, {"weight": 1}, {1: torch.ones(1)}, {"weight": torch.ones(2).to_sparse()}):
        with pytest.raises(ValueError, match=r"it is not a state dict|is not a dense tensor"):
            named_tensors(state)
    assert list(named_tensors({"weight": torch.ones(1), "ids": torch.arange(3)})) == ["weight"]
