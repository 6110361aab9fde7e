"""The command line: results, JSON, one-line errors with their exit codes."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from command_line import call

from bertsmith import cli
from bertsmith.tokenizers.tokenizer import load

TEXT = "The smith heats the iron. Then the smith strikes it.\n\nA forge needs air. 대장간에는 바람이 필요하다.\n\n"


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("cli")
    (base / "corpus.txt").write_text(TEXT * 3, encoding="utf-8")
    trained = call("tokenizer", "train", base / "corpus.txt", "-o", base / "tokenizer", "--vocab-size", 160, "-q")
    assert trained.returncode == 0, trained.stderr
    other = call("tokenizer", "train", base / "corpus.txt", "-o", base / "other", "--vocab-size", 180, "-q", "--cased")
    assert other.returncode == 0, other.stderr
    prepared = call("prepare", base / "corpus.txt", "-t", base / "tokenizer", "-o", base / "shards", "--held-out", 0)
    assert prepared.returncode == 0, prepared.stderr
    return base


def test_tokenizer_show_prints_tokens_ids_and_offsets(inputs: Path) -> None:
    shown = call("tokenizer", "show", inputs / "tokenizer", "The smith 대장간 ☃", "--json")
    found = json.loads(shown.stdout)
    assert found["tokens"][0] == "[CLS]"
    assert found["tokens"][-1] == "[SEP]"
    assert found["unknown"] == 1
    assert len(found["tokens"]) == len(found["ids"]) == len(found["offsets"])
    picture = call("tokenizer", "show", inputs / "tokenizer", "The smith strikes", "--pair", "the iron")
    assert "smith" in picture.stdout
    assert "unknown 0.0%" in picture.stdout


def test_special_tokens_in_text_are_parsed_only_with_a_flag(inputs: Path) -> None:
    plain = json.loads(call("tokenizer", "show", inputs / "tokenizer", "the [MASK]", "--json").stdout)
    asked = json.loads(call("tokenizer", "show", inputs / "tokenizer", "the [MASK]", "--specials", "--json").stdout)
    assert "[MASK]" not in plain["tokens"]
    assert "[MASK]" in asked["tokens"]


@pytest.mark.parametrize("words", [(), ("--json",), ("--help",)])
def test_a_closed_pipe_ends_a_command_quietly(inputs: Path, words: tuple[str, ...]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    shown = [sys.executable, "-m", "bertsmith", "tokenizer", "show", str(inputs / "tokenizer"), *words]
    done = subprocess.run(shown, stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (cli.NO_READER, b"")


def test_stats(inputs: Path) -> None:
    found = json.loads(call("tokenizer", "stats", inputs / "tokenizer", inputs / "corpus.txt", "--json").stdout)
    assert found["words"] == len((TEXT * 3).split())
    assert found["unknown_rate"] == 0
    assert found["tokens_per_word"] >= 1
    assert found["bytes"] == pytest.approx(len((TEXT * 3).encode()), rel=0.05)


def test_prepare_and_verify(inputs: Path, tmp_path: Path) -> None:
    done = call(
        "prepare", inputs / "corpus.txt", "-t", inputs / "tokenizer", "-o", tmp_path / "shards", "--json", "--unique"
    )
    found = json.loads(done.stdout)
    assert found["documents"] + found["held_out_documents"] == 2
    assert found["duplicates"] == 4
    checked = call("verify", tmp_path / "shards")
    assert checked.returncode == 0
    assert sum("train-00000.shard" in line for line in checked.stdout.splitlines()) == 1
    shard = next((tmp_path / "shards").glob("train-*.shard"))
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    checked = call("verify", tmp_path / "shards", "--json")
    assert checked.returncode == 65
    assert [report["name"] for report in json.loads(checked.stdout)["files"] if not report["ok"]] == [
        "train-00000.shard"
    ]


def test_prepare_without_a_tokenizer_gives_the_files_of_the_two_commands(inputs: Path, tmp_path: Path) -> None:
    words = ("prepare", inputs / "corpus.txt", "-o", tmp_path / "one", "--vocab-size", 180, "--cased", "--held-out", 0)
    done = call(*words, "--json")
    assert json.loads(done.stdout)["tokenizer"] == load(inputs / "other").fingerprint
    call("prepare", inputs / "corpus.txt", "-o", tmp_path / "two", "-t", inputs / "other", "--held-out", 0)
    for path in (one for one in (tmp_path / "two").rglob("*") if one.is_file()):
        assert (tmp_path / "one" / path.relative_to(tmp_path / "two")).read_bytes() == path.read_bytes()
    assert call(*words, "--set", "min_count=3").returncode == 2
    assert call(*words, "--set", "min_count=3", "--overwrite").returncode == 0


def test_dry_run_writes_nothing(inputs: Path, tmp_path: Path) -> None:
    done = call(
        "prepare", inputs / "corpus.txt", "-t", inputs / "tokenizer", "-o", tmp_path / "x", "--dry-run", "--json"
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["files"] == 1
    assert not (tmp_path / "x").exists()


def test_doctor(tmp_path: Path) -> None:
    found = json.loads(call("doctor", "--device", "cpu", "--json").stdout)
    assert found["ok"] is True
    assert {check["precision"] for check in found["numeric"]} == {"float32", "bfloat16"}


def test_version_and_completion() -> None:
    assert call("--version").stdout.startswith("bertsmith ")
    asked = {"_BERTSMITH_COMPLETE": "complete_bash", "COMP_WORDS": "bertsmith prep", "COMP_CWORD": "1"}
    program = Path(sys.executable).with_name("bertsmith")
    done = subprocess.run([program], capture_output=True, text=True, env=os.environ | asked, check=False)
    assert done.stdout.split() == ["prepare"]


@pytest.mark.parametrize("words", [(), ("runs",), ("tokenizer",)], ids=["nothing", "runs", "tokenizer"])
def test_a_group_without_a_command_prints_its_help(words: tuple[str, ...]) -> None:
    done, asked = call(*words), call(*words, "--help")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == asked.stdout
    assert "\nCommands:\n" in done.stderr


BAD = {
    "missing file": ((["prepare", "{b}/nowhere.txt", "-t", "{b}/tokenizer", "-o", "{t}/o"]), 65, "nowhere.txt"),
    "empty corpus": ((["prepare", "{t}/empty.txt", "-t", "{b}/tokenizer", "-o", "{t}/o"]), 65, "no text"),
    "not UTF-8": ((["prepare", "{t}/latin.txt", "-t", "{b}/tokenizer", "-o", "{t}/o"]), 65, "latin.txt"),
    "truncated gzip": ((["prepare", "{t}/cut.txt.gz", "-t", "{b}/tokenizer", "-o", "{t}/o"]), 65, "cut.txt.gz"),
    "bad jsonl line": ((["prepare", "{t}/bad.jsonl", "-t", "{b}/tokenizer", "-o", "{t}/o"]), 65, "bad.jsonl:2"),
    "missing column": ((["prepare", "{t}/c.csv", "-t", "{b}/tokenizer", "-o", "{t}/o"]), 65, "c.csv"),
    "output there": ((["prepare", "{b}/corpus.txt", "-t", "{b}/tokenizer", "-o", "{b}/shards"]), 2, "already"),
    "output of tokenizer there": (
        (["tokenizer", "train", "{b}/corpus.txt", "-o", "{b}/tokenizer"]),
        2,
        "already exists",
    ),
    "no tokenizer": ((["prepare", "{b}/corpus.txt", "-t", "{t}", "-o", "{t}/o"]), 65, "tokenizer"),
    "trained tokenizer beside one that exists": (
        (["prepare", "{b}/corpus.txt", "-t", "{b}/tokenizer", "-o", "{t}/o", "--kind", "bpe", "--vocab-size", "300"]),
        78,
        "--kind and --vocab-size are for training a tokenizer: leave out --kind and --vocab-size, or --tokenizer",
    ),
    "only a target tokenizer": (
        (["prepare", "{b}/corpus.txt", "--parallel", "--target-tokenizer", "{b}/tokenizer", "-o", "{t}/o"]),
        78,
        "pass --tokenizer too",
    ),
    "unknown kind": (
        (["tokenizer", "train", "{b}/corpus.txt", "-o", "{t}/o", "--kind", "wordpeice"]),
        78,
        "did you mean wordpiece?",
    ),
    "unknown setting": (
        (["tokenizer", "train", "{b}/corpus.txt", "-o", "{t}/o", "--set", "min_cuont=3"]),
        78,
        "did you mean min_count=3?",
    ),
    "unknown layout": (
        (["prepare", "{b}/corpus.txt", "-t", "{b}/tokenizer", "-o", "{t}/o", "--format", "jsno"]),
        78,
        "jsonl",
    ),
    "unknown command": ((["prepair", "{b}/corpus.txt"]), 2, "prepair"),
    "unknown flag": ((["prepare", "{b}/corpus.txt", "--tokeniser", "x"]), 2, "--tokeniser"),
    "no CUDA": ((["doctor", "--device", "tpu"]), 2, "auto, cpu, cuda or mps"),
    "no shards": ((["verify", "{t}"]), 65, "index.json"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_a_one_line_error(case: str, inputs: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("\n\n")
    (tmp_path / "latin.txt").write_bytes("Gr\xfc\xdfe aus K\xf6ln".encode("latin-1"))
    (tmp_path / "cut.txt.gz").write_bytes(gzip.compress(TEXT.encode() * 500)[:-40])
    (tmp_path / "bad.jsonl").write_text('{"text": "fine"}\n{"text": broken}\n')
    (tmp_path / "c.csv").write_text("id,body\n1,hello\n")
    words, status, part = BAD[case]
    done = call(*[word.format(b=inputs, t=tmp_path) for word in words])
    assert done.returncode == status, done.stderr
    assert part in done.stderr
    assert done.stderr.startswith("bertsmith: ")
    assert len(done.stderr.strip().splitlines()) == 1
    assert "Traceback" not in done.stderr


def test_shards_of_another_tokenizer_are_refused(inputs: Path) -> None:
    from bertsmith.data.shards import Shards
    from bertsmith.errors import DataError
    from bertsmith.tokenizers.tokenizer import load

    with pytest.raises(DataError, match=r"were written with tokenizer .* but this run uses"):
        Shards.open(inputs / "shards", fingerprint=load(inputs / "other").fingerprint)


@pytest.mark.skipif(os.geteuid() != 0 or sys.platform != "linux", reason="needs root to mount a small tmpfs")
def test_full_disk(inputs: Path, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(small)], check=False)
    if mounted.returncode:
        pytest.skip("no tmpfs can be mounted here")
    try:
        (tmp_path / "big.txt").write_text(TEXT * 20_000, encoding="utf-8")
        done = call("prepare", tmp_path / "big.txt", "-t", inputs / "tokenizer", "-o", small / "shards", "-q")
        assert done.returncode == 74
        assert "No space left on device" in done.stderr
        assert "free in" in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_out_of_memory_is_a_one_line_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def full(**given: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 4.50 GiB.")

    monkeypatch.setattr(cli, "command", lambda *_: full)
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == 2
    assert "out of GPU memory" in capsys.readouterr().err
