"""Safetensors: the library reads what we write and we read what it writes; every false claim of a header is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from model_io.folder_fixtures import one_line, raw
from model_io.malformed_headers import WRONG, claim
from safetensors.torch import load, save

from bertsmith.errors import DataError
from bertsmith.model_io import safetensors_files
from bertsmith.model_io.safetensors_files import TYPES, WeightFiles, file_chunks

SHAPES = some.lists(some.integers(0, 5), max_size=3)
TENSORS = some.dictionaries(
    some.text(min_size=1, max_size=8), some.tuples(SHAPES, some.sampled_from(sorted(TYPES))), max_size=6
)


def drawn(shapes: dict[str, tuple[list[int], str]]) -> dict[str, torch.Tensor]:
    """Random tensors of these shapes and types."""
    chance = torch.Generator().manual_seed(len(shapes))
    return {name: torch.randn(shape, generator=chance).to(TYPES[kind]) for name, (shape, kind) in shapes.items()}


@given(TENSORS.filter(lambda shapes: "__metadata__" not in shapes))
@settings(deadline=None, max_examples=60)
def test_the_safetensors_library_reads_our_files_and_we_read_its(
    tmp_path_factory: pytest.TempPathFactory, shapes: dict[str, Any]
) -> None:
    folder, tensors = tmp_path_factory.mktemp("folder"), drawn(shapes)
    written = b"".join(file_chunks(tensors))
    for name, value in load(written).items():
        assert torch.equal(value, tensors[name])
        assert value.dtype == tensors[name].dtype
    assert written == b"".join(file_chunks(dict(reversed(tensors.items()))))
    for data in (written, save(tensors)):
        (folder / "x.safetensors").write_bytes(data)
        file = WeightFiles(folder, ["x.safetensors"])
        assert set(file.entries) == set(tensors)
        for name, value in tensors.items():
            found = torch.empty_like(value)
            file.fill(name, found)
            assert torch.equal(found, value)
        file.close()


def test_reads_into_a_slice_of_another_type(tmp_path: Path) -> None:
    stored = torch.randn(3, 4).bfloat16()
    (tmp_path / "x.safetensors").write_bytes(save({"a": stored}))
    target = torch.zeros(9, 4)
    file = WeightFiles(tmp_path, ["x.safetensors"])
    file.fill("a", target.chunk(3)[1])
    assert torch.equal(target[3:6], stored.float())
    assert not target[:3].any()
    assert not target[6:].any()
    file.close()


@pytest.mark.parametrize("case", WRONG)
def test_malformed_headers_are_refused(case: str, tmp_path: Path) -> None:
    data, words = WRONG[case]
    (tmp_path / "x.safetensors").write_bytes(data)
    with pytest.raises(DataError) as found:
        WeightFiles(tmp_path, ["x.safetensors"])
    one_line(found, str(tmp_path / "x.safetensors"), words)


def test_too_many_tensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safetensors_files, "MAX_TENSORS", 2)
    empty = claim([0], [0, 0])
    (tmp_path / "x.safetensors").write_bytes(raw(dict.fromkeys("abc", empty)))
    with pytest.raises(DataError, match="3 tensors: at most 2"):
        WeightFiles(tmp_path, ["x.safetensors"])


def test_integer_tensors_may_be_present_but_are_not_weights(tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(save({"ids": torch.arange(3), "a": torch.ones(2)}))
    file = WeightFiles(tmp_path, ["x.safetensors"])
    assert file.entries["ids"].kind == "I64"
    with pytest.raises(DataError, match="'ids' is of type I64"):
        file.fill("ids", torch.empty(3))
    file.close()


def test_a_file_truncated_while_open_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(save({"a": torch.ones(1000)}))
    file = WeightFiles(tmp_path, ["x.safetensors"])
    with open(path, "r+b") as handle:
        handle.truncate(500)
    with pytest.raises(DataError, match=r"x\.safetensors ends at byte 500"):
        file.fill("a", torch.empty(1000))
    file.close()


def test_header_is_read_by_the_library_too(tmp_path: Path) -> None:
    """Tensors are aligned to 8 bytes, and the metadata says pt, which transformers requires."""
    data = b"".join(file_chunks({"weight": torch.ones(3)}))
    length = int.from_bytes(data[:8], "little")
    assert length % 8 == 0
    assert json.loads(data[8 : 8 + length])["__metadata__"] == {"format": "pt"}
