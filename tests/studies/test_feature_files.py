"""FeatureCache on disk: bytes do not depend on the order of writes, and damage is always detected."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faults.broken_disks import QuickDisk
from faults.faulty_disks import FailingDisk, RecordingDisk
from faults.power_loss import power_loss_states
from model_fixtures import random_rows

from bertsmith.errors import BertsmithError, ConfigError, DataError, StorageError
from bertsmith.studies import feature_files
from bertsmith.studies.feature_files import FeatureCache, FeatureFile, FeatureSpec, cache_features, row_key
from bertsmith.system.durable import Disk
from bertsmith.types import Row

ROWS = random_rows([5, 9, 7, 7, 12, 6, 30, 11])
SPEC = FeatureSpec("0123456789abcdef", (0, 2, 3), width=4)


def numbers_of(row: Row) -> np.ndarray:
    """The features of a row in these tests."""
    seed = int(row.ids.sum()) + 1000 * len(row)
    return np.random.default_rng(seed).normal(size=(3, len(row), 4)).astype(np.float32)


def key_of(row: Row) -> str:
    return row_key(row.ids, row.segment_ids, row.characters)


class Extractor:
    """Counts the rows that it computes."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, rows: Sequence[Row]) -> Iterator[np.ndarray]:
        for row in rows:
            self.calls += 1
            yield numbers_of(row)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feature_files, "FILE_BYTES", 1000)


def keep(folder: Path, rows: Sequence[Row] = ROWS, *, disk: Disk | None = None) -> tuple[FeatureCache, int]:
    extractor = Extractor()
    return cache_features(folder, rows, SPEC, extractor, disk=disk or QuickDisk(), quiet=True), extractor.calls


def check(features: FeatureCache) -> None:
    for row in ROWS:
        key, right = key_of(row), numbers_of(row)
        assert np.array_equal(features.read(key, range(2, 4)), right[1:])
        assert np.array_equal(features.read(key, range(1)), right[:1])


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_each_row_is_stored_once_and_bytes_do_not_depend_on_order(tmp_path: Path) -> None:
    features, labelled = keep(tmp_path / "a", [*ROWS, *ROWS[:3]])
    check(features)
    assert labelled == len(ROWS)
    assert len(list((tmp_path / "a").rglob("*.bin"))) > 2
    check(keep(tmp_path / "b", ROWS[::-1])[0])
    assert files(tmp_path / "a") == files(tmp_path / "b")
    assert keep(tmp_path / "a")[1] == 0


def test_another_encoder_precision_or_row_is_another_folder(tmp_path: Path) -> None:
    keep(tmp_path)
    for spec in (FeatureSpec("f" * 16, (0, 2, 3), 4), FeatureSpec(SPEC.encoder, (0, 2, 3), 4, "float16")):
        extractor = Extractor()
        cache_features(tmp_path, ROWS, spec, extractor, quiet=True)
        assert extractor.calls == len(ROWS)
    assert keep(tmp_path, ROWS[1:])[1] == len(ROWS) - 1
    assert len(list(tmp_path.iterdir())) == 4


def test_half_precision_is_rounded_and_never_infinite(tmp_path: Path) -> None:
    spec = FeatureSpec(SPEC.encoder, (0, 2, 3), 4, "float16")
    features = cache_features(tmp_path, ROWS, spec, Extractor(), quiet=True)
    result = features.read(key_of(ROWS[0]), range(2, 4))
    assert 0 < np.abs(result - numbers_of(ROWS[0])[1:]).max() < 2e-3
    with pytest.raises(BertsmithError, match="overflows float16"):
        cache_features(tmp_path / "b", ROWS, spec, lambda rows: (1e5 * numbers_of(row) for row in rows), quiet=True)
    with pytest.raises(ConfigError, match="precision=int8"):
        FeatureSpec("", (0,), 4, "int8")  # type: ignore[arg-type]


def test_segments_are_part_of_a_row() -> None:
    ids = np.arange(6, dtype=np.int32)
    assert row_key(ids, np.zeros(6)) != row_key(ids, np.array([0, 0, 0, 1, 1, 1]))
    assert row_key(ids, np.zeros(6)) == row_key(ids.astype(np.int64), np.zeros(6, np.int64))


def damaged(folder: Path) -> Iterator[str]:
    """Every file changed in one byte, cut short, or removed; one at a time."""
    for name, data in files(folder).items():
        path, middle = folder / name, len(data) // 2
        for what, wrong in (
            ("flipped", data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]),
            ("cut", data[:-1]),
            ("empty", b""),
        ):
            path.write_bytes(wrong)
            yield f"{name} {what}"
        path.unlink()
        yield f"{name} removed"


def test_only_damaged_files_are_rewritten(tmp_path: Path) -> None:
    right = (keep(tmp_path), files(tmp_path))[1]
    for what in damaged(tmp_path):
        features, labelled = keep(tmp_path)
        assert 0 < labelled < len(ROWS), what
        check(features)
        assert files(tmp_path) == right, what


def test_skipping_the_checksum_test_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(tmp_path)

    def trusting(part: FeatureFile) -> bool:
        return part.index.exists()

    monkeypatch.setattr(FeatureFile, "is_complete", trusting)
    wrong = 0
    for _ in damaged(tmp_path):
        try:
            check(keep(tmp_path)[0])
        except (AssertionError, BertsmithError, OSError):
            wrong += 1
    assert wrong > 3


@pytest.mark.parametrize("how", ["ENOSPC", "EIO"])
def test_a_disk_error_is_one_line_and_the_next_call_resumes(how: Any, tmp_path: Path) -> None:
    recorder = RecordingDisk()
    keep(tmp_path / "right", disk=recorder)
    right = files(tmp_path / "right")
    for turn in range(len(recorder.operations)):
        disk = FailingDisk(turn, how)
        with pytest.raises(StorageError, match=r"No space left|Input/output error"):
            keep(tmp_path / str(turn), disk=disk)
        assert disk.landed
        check(keep(tmp_path / str(turn))[0])
        assert files(tmp_path / str(turn)) == right


def test_no_damaged_file_is_trusted_after_power_loss(tmp_path: Path) -> None:
    recorder, seen = RecordingDisk(), 0
    root = tmp_path / "recorded"
    root.mkdir()
    keep(root / "features", disk=recorder)
    right = files(root / "features")
    for number, state in enumerate(power_loss_states(recorder.operations, root, limit=40)):
        folder = tmp_path / f"state-{number}"
        folder.mkdir()
        state.materialise(folder)
        check(keep(folder / "features")[0])
        whole = {name: data for name, data in files(folder / "features").items() if not name.endswith(".partial")}
        assert whole == right
        seen += 1
    assert seen > 20


def test_missing_rows_and_truncated_files_are_errors(tmp_path: Path) -> None:
    features, _ = keep(tmp_path)
    with pytest.raises(BertsmithError, match="not in the feature cache"):
        features.read("0" * 32, range(1))
    for path in tmp_path.rglob("*.bin"):
        path.write_bytes(b"")
    with pytest.raises(DataError, match="is truncated"):
        features.read(key_of(ROWS[0]), range(1))
