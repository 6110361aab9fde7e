"""The durable disk: writes, errors, locks, and whether the disks of the fault tests are accurate."""

import hashlib
import multiprocessing
import os
import re
import resource
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from faults.faulty_disks import FailingDisk, RecordingDisk
from faults.power_loss import power_loss_states
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.errors import BertsmithError, DataError, StorageError
from bertsmith.system.durable import Disk, checksummed_json, read_checksummed_json


def names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def test_write_file_returns_what_is_on_disk(tmp_path: Path) -> None:
    data = bytes(range(256)) * 100
    written = Disk().write_file(tmp_path / "a", [data[:1000], b"", memoryview(data)[1000:]])
    assert (tmp_path / "a").read_bytes() == data
    assert (written.bytes, written.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    assert names(tmp_path) == ["a"]


def test_write_file_takes_generators_and_wide_arrays(tmp_path: Path) -> None:
    wide = memoryview(b"12345678").cast("I")
    assert Disk().write_file(tmp_path / "a", (chunk for chunk in (wide, b"9"))).bytes == 9
    assert (tmp_path / "a").read_bytes() == b"123456789"


def test_a_failing_source_leaves_the_old_file_and_no_leftover(tmp_path: Path) -> None:
    def chunks() -> Iterator[bytes]:
        yield b"new"
        raise KeyboardInterrupt

    (tmp_path / "a").write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt):
        Disk().write_file(tmp_path / "a", chunks())
    assert names(tmp_path) == ["a"]
    assert (tmp_path / "a").read_bytes() == b"old"


def test_recorded_order_is_write_sync_rename_sync(tmp_path: Path) -> None:
    disk = RecordingDisk()
    disk.write_file(tmp_path / "a", [b"x"])
    assert [operation.kind for operation in disk.operations] == ["create", "write", "fsync", "rename", "sync_folder"]


@pytest.mark.parametrize("how", ["ENOSPC", "EIO"])
@pytest.mark.parametrize("number", range(5))
def test_every_failure_names_path_and_bytes(tmp_path: Path, how: str, number: int) -> None:
    disk = FailingDisk(number, how)  # type: ignore[arg-type]
    with pytest.raises(StorageError) as caught:
        disk.write_file(tmp_path / "a", [b"1" * 1000, b"2" * 2000])
    reason = "No space left on device" if how == "ENOSPC" else "Input/output error"
    shape = rf"{reason}: writing {re.escape(str(tmp_path / 'a'))} needs 3,000 bytes, [\d,]+ bytes are free in .*"
    assert re.fullmatch(shape, str(caught.value))
    assert isinstance(caught.value.__cause__, OSError)
    assert disk.landed == 1
    assert names(tmp_path) in ([], ["a"])


def test_short_writes_are_continued(tmp_path: Path) -> None:
    disk = FailingDisk(1, "short")
    written = disk.write_file(tmp_path / "a", [b"abcdefgh"])
    assert (tmp_path / "a").read_bytes() == b"abcdefgh"
    assert (written.bytes, disk.landed) == (8, 1)
    assert written.sha256 == hashlib.sha256(b"abcdefgh").hexdigest()


def _write_past_the_limit(folder: Path) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
    with pytest.raises(StorageError, match=r"File too large: writing .*/a needs 30,000 bytes, [\d,]+ bytes are free"):
        Disk().write_file(folder / "a", [b"x" * 30_000])
    os._exit(7)


def test_a_write_that_the_kernel_refuses(tmp_path: Path) -> None:
    child = multiprocessing.get_context("fork").Process(target=_write_past_the_limit, args=(tmp_path,))
    child.start()
    child.join()
    assert child.exitcode == 7
    assert names(tmp_path) == []


def test_folders_are_committed_and_removed_whole(tmp_path: Path) -> None:
    disk = Disk()
    aside, final = tmp_path / "run" / "step-1.partial", tmp_path / "run" / "step-1"
    disk.make_folder(aside / "inner")
    disk.write_file(aside / "weights", [b"w"], atomic=False)
    disk.write_file(aside / "inner" / "more", [b"m"], atomic=False)
    disk.commit_folder(aside, final)
    assert names(tmp_path) == ["run", "run/step-1", "run/step-1/inner", "run/step-1/inner/more", "run/step-1/weights"]
    (final / "link").symlink_to(tmp_path)
    disk.remove_folder(final)
    assert names(tmp_path) == ["run"]


def test_a_link_to_a_folder_is_not_removed_through(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "a").write_bytes(b"")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(StorageError, match="Not a directory"):
        Disk().remove_folder(tmp_path / "link")
    assert (tmp_path / "real" / "a").exists()


def test_the_second_holder_of_a_lock_is_refused(tmp_path: Path) -> None:
    with Disk().lock(tmp_path):
        with pytest.raises(BertsmithError, match="another process is using"), Disk().lock(tmp_path):
            pass
        assert names(tmp_path) == []
    with Disk().lock(tmp_path):
        pass


def test_a_forked_worker_does_not_keep_the_lock_of_its_dead_parent(tmp_path: Path) -> None:
    over, ready = os.pipe(), os.pipe()
    parent = os.fork()
    if not parent:
        with Disk().lock(tmp_path):
            if not os.fork():
                os.write(ready[1], b"x")
                os.read(over[0], 1)  # the worker lives on until the test is over
                os._exit(0)
            os.read(ready[0], 1)
            os.kill(os.getpid(), signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(parent, 0)[1]) == -signal.SIGKILL
    try:
        with Disk().lock(tmp_path):
            pass
    finally:
        os.write(over[1], b"x")
        for end in (*over, *ready):
            os.close(end)


@given(st.dictionaries(st.text(), st.integers() | st.text() | st.lists(st.text()), min_size=1))
def test_checksummed_contents_are_read_back(contents: dict[str, object]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "a").write_bytes(checksummed_json(contents))
        read = read_checksummed_json(Path(folder) / "a")
    assert {**read, "seal": ""} == {**contents, "seal": ""}


def test_any_changed_byte_is_detected(tmp_path: Path) -> None:
    data = checksummed_json({"one": 1, "two": ["zwei", None]})
    for position in range(len(data)):
        for mask in (1, 0x20, 0x80, 0xFF):
            changed = bytearray(data)
            changed[position] ^= mask
            (tmp_path / "a").write_bytes(changed)
            with pytest.raises(DataError, match="is damaged"):
                read_checksummed_json(tmp_path / "a")


def found_after(disk: RecordingDisk, root: Path) -> list[dict[str, bytes | None]]:
    return [state.files for state in power_loss_states(disk.operations, root) if state.after == len(disk.operations)]


def test_an_acknowledged_file_has_one_state_only(tmp_path: Path) -> None:
    disk = RecordingDisk()
    disk.write_file(tmp_path / "a", [b"first", b"second"])
    assert found_after(disk, tmp_path) == [{"a": b"firstsecond"}]


def test_without_fsync_contents_are_lost_torn_and_reordered(tmp_path: Path) -> None:
    disk = RecordingDisk()
    disk.write_file(tmp_path / "a", [b"1111", b"2222"])
    disk.operations = [operation for operation in disk.operations if operation.kind != "fsync"]
    result = {files["a"] for files in found_after(disk, tmp_path)}
    assert result == {b"", b"11", b"1111", b"111122", b"\0\0\0\0002222", b"11112222", bytes(8)}


def test_without_folder_sync_names_are_lost_in_any_order(tmp_path: Path) -> None:
    disk = RecordingDisk()
    for name in ("a", "b"):
        disk.write_file(tmp_path / name, [b"x"])
    disk.operations = [operation for operation in disk.operations if operation.kind != "sync_folder"]
    result = [set(files) for files in found_after(disk, tmp_path)]
    assert set() in result
    assert {"b"} in result
    assert {"a.partial", "b.partial"} in result


def test_a_committed_folder_has_one_state_only(tmp_path: Path) -> None:
    disk = RecordingDisk()
    disk.make_folder(tmp_path / "x.partial")
    disk.write_file(tmp_path / "x.partial" / "a", [b"1"], atomic=False)
    disk.commit_folder(tmp_path / "x.partial", tmp_path / "x")
    assert found_after(disk, tmp_path) == [{"x": None, "x/a": b"1"}]
    disk.remove_folder(tmp_path / "x")
    assert found_after(disk, tmp_path) == [{}]
    for state in power_loss_states(disk.operations, tmp_path):
        if "x" in state.files:  # under its final name a folder is whole
            assert state.files == {"x": None, "x/a": b"1"}


class RivalledDisk(Disk):
    """Another process creates each folder just before this one does."""

    def _mkdir(self, path: Path) -> None:
        path.mkdir()
        super()._mkdir(path)


def test_folders_that_another_process_made_meanwhile_are_taken(tmp_path: Path) -> None:
    RivalledDisk().make_folder(tmp_path / "study" / "task" / "seed-0")
    assert names(tmp_path) == ["study", "study/task", "study/task/seed-0"]


def test_a_file_is_not_taken_for_a_folder(tmp_path: Path) -> None:
    (tmp_path / "study").write_bytes(b"")
    with pytest.raises(StorageError, match=r"making folder .*study"):
        Disk().make_folder(tmp_path / "study")


@pytest.mark.parametrize("case", ["existing folder", "file", "link", "no folder", "long name"])
def test_errors_about_names_do_not_count_bytes(case: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    for name in ("folder", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a").write_bytes(b"")
    calls = {
        "existing folder": lambda: Disk().commit_folder(tmp_path / "folder", tmp_path / "other"),
        "file": lambda: Disk().write_file(tmp_path / "file" / "a", [b"x"]),
        "link": lambda: Disk().remove_folder(tmp_path / "link"),
        "no folder": lambda: Disk().write_file(tmp_path / "none" / "a", [b"x"]),
        "long name": lambda: Disk().make_folder(tmp_path / ("a" * 300)),
    }
    with pytest.raises(StorageError) as caught:
        calls[case]()
    reason = {"file": "file is a file, ", "link": "link is a symbolic link, ", "no folder": "none is missing, "}
    assert f"{reason.get(case, '')}choose another path" in str(caught.value)
    assert "bytes" not in str(caught.value)


def test_a_failure_without_contents_does_not_need_zero_bytes(tmp_path: Path) -> None:
    for how in ("ENOSPC", "EIO"):
        with pytest.raises(StorageError) as caught:
            FailingDisk(0, how).make_folder(tmp_path / "a")  # type: ignore[arg-type]
        assert "needs 0 bytes" not in str(caught.value)
        assert ("bytes are free in" in str(caught.value)) == (how == "ENOSPC")
