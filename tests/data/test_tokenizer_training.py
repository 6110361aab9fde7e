"""`prepare` without a tokenizer: the result of the two commands, and no second training after an interruption."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from data.test_prepare import digest, make_corpus
from faults.faulty_disks import FailingDisk

import bertsmith as bs
from bertsmith.data import prepare as run
from bertsmith.data.shards import remove_shard_set, verify
from bertsmith.data.tokenizer_training import TokenizerTraining
from bertsmith.errors import BertsmithError, ConfigError, DataError, StorageError
from bertsmith.tokenizers.wordpiece import Config

RECORD = "tokenizer_training.json"
TRAINING = TokenizerTraining(Config(), 160)
OPTIONS: dict[str, Any] = {"workers": 1, "quiet": True, "shard_tokens": 2_000}


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    make_corpus(tmp_path / "corpus.txt", documents=300)
    return tmp_path / "corpus.txt"


def prepare(corpus: Path, output: Path, training: TokenizerTraining = TRAINING, **options: Any) -> dict[str, Any]:
    return run.prepare([corpus], output, tokenizer=training, **OPTIONS, **options)


def interrupt(corpus: Path, output: Path) -> None:
    """A call that fails while it writes the first shard."""
    with pytest.raises(StorageError):
        prepare(corpus, output, disk=FailingDisk(42, "ENOSPC"))
    assert (output / RECORD).exists()
    assert not (output / "index.json").exists()


def shards_of(folder: Path) -> dict[str, str]:
    """Every file but the record of the training."""
    return {name: value for name, value in digest(folder).items() if name != RECORD}


@pytest.fixture
def no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def trained(*_: Any, **__: Any) -> None:
        raise AssertionError("the tokenizer was trained again")

    monkeypatch.setattr(TokenizerTraining, "_train", trained)


@pytest.mark.filterwarnings("ignore::bertsmith.errors.UnknownWordsWarning")
@pytest.mark.parametrize("kind", ["wordpiece", "byte_bpe", "bpe", "unigram", "words", "characters"])
def test_the_result_is_that_of_the_two_commands(kind: Any, tmp_path: Path, corpus: Path) -> None:
    size: Any = {"kind": kind, "vocab_size": 120 if kind == "unigram" else 290, "limit": 250, "quiet": True}
    size |= {"cased": True, "settings": {"min_count": 1} if kind == "words" else None}
    tokenizer = bs.train_tokenizer([corpus], tmp_path / "t", **size)
    bs.prepare([corpus], tmp_path / "two", tokenizer=tokenizer, held_out=0.1, limit=250, quiet=True)
    one = bs.prepare([corpus], tmp_path / "one", held_out=0.1, **size)
    assert one.documents == 250
    assert shards_of(tmp_path / "one") == digest(tmp_path / "two")
    assert digest(tmp_path / "one" / "tokenizer") == digest(tmp_path / "t")
    assert all(report.ok for report in verify(tmp_path / "one"))


def test_pairs_have_one_joint_vocabulary(tmp_path: Path) -> None:
    pairs = [(f"iron {number}", f"쇠 {number}") for number in range(60)]
    how: dict[str, Any] = {"kind": "byte_bpe", "vocab_size": 280, "parallel": True, "quiet": True}
    words = bs.train_tokenizer(pairs, tmp_path / "t", **how)
    bs.prepare(pairs, tmp_path / "two", tokenizer=words, parallel=True, quiet=True)
    bs.prepare(pairs, tmp_path / "one", **how)
    assert shards_of(tmp_path / "one") == digest(tmp_path / "two")
    assert bs.load_tokenizer(tmp_path / "one" / "tokenizer").target is None


def test_after_a_failure_at_any_operation_a_durable_tokenizer_is_not_trained_again(
    tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(corpus, tmp_path / "whole")
    trainings = []
    train = TokenizerTraining._train
    monkeypatch.setattr(TokenizerTraining, "_train", lambda *given: trainings.append(1) or train(*given))
    durable = 0
    for number in range(1000):
        output, disk = tmp_path / f"failed-{number}", FailingDisk(number, "EIO")
        try:
            prepare(corpus, output, disk=disk)
        except StorageError:
            durable += (output / RECORD).exists()
            trainings.clear()
            before = (output / RECORD).exists()
            prepare(corpus, output)
            assert len(trainings) == (not before)
        assert digest(output) == digest(tmp_path / "whole")
        if not disk.landed:
            break
    assert not disk.landed
    assert 10 < durable < number


def test_a_kill_between_training_and_shards(tmp_path: Path, corpus: Path, no_training: None) -> None:
    script = (
        "import os, signal, sys\n"
        "from bertsmith.data import prepare as run\n"
        "from bertsmith.data.tokenizer_training import TokenizerTraining\n"
        "from bertsmith.tokenizers.wordpiece import Config\n"
        "run._add_units = lambda *given, **named: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"options = {OPTIONS}\n"
        "run.prepare([sys.argv[1]], sys.argv[2], tokenizer=TokenizerTraining(Config(), 160), **options)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(corpus), str(tmp_path / "shards")])
    assert done.returncode == -signal.SIGKILL
    assert not list((tmp_path / "shards").glob("*.shard"))
    tokenizer = digest(tmp_path / "shards" / "tokenizer")
    prepare(corpus, tmp_path / "shards")
    assert digest(tmp_path / "shards" / "tokenizer") == tokenizer
    assert list((tmp_path / "shards").glob("*.shard"))


def test_a_finished_set_is_neither_trained_nor_prepared_again(
    tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = prepare(corpus, tmp_path / "shards")
    monkeypatch.setattr(TokenizerTraining, "_train", None)
    assert prepare(corpus, tmp_path / "shards") == first
    for other in (TokenizerTraining(Config(), 170), TokenizerTraining(Config(min_count=3), 160)):
        with pytest.raises(BertsmithError, match="already holds a finished shard set"):
            prepare(corpus, tmp_path / "shards", other)
    with pytest.raises(BertsmithError, match="already holds a finished shard set"):
        prepare(corpus, tmp_path / "shards", held_out=0.3)
    run.prepare([corpus], tmp_path / "given", tokenizer=tmp_path / "shards" / "tokenizer", **OPTIONS)
    with pytest.raises(BertsmithError, match="already holds a finished shard set"):
        prepare(corpus, tmp_path / "given")


def test_resuming_with_other_settings_is_rejected(
    tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt(corpus, tmp_path / "shards")
    monkeypatch.setattr(TokenizerTraining, "_train", None)
    with pytest.raises(BertsmithError, match="unfinished shard set with other settings: vocab_size was 160 and is now"):
        prepare(corpus, tmp_path / "shards", TokenizerTraining(Config(), 170))
    with pytest.raises(BertsmithError, match="lowercase was true and is now false"):
        prepare(corpus, tmp_path / "shards", TokenizerTraining(Config(lowercase=False), 160))
    corpus.write_text(f"{corpus.read_text(encoding='utf-8')}\n\nAnother document.", encoding="utf-8")
    with pytest.raises(BertsmithError, match=r"unfinished shard set with other settings: settings\.files"):
        prepare(corpus, tmp_path / "shards")


def test_a_damaged_tokenizer_is_trained_again(tmp_path: Path, corpus: Path) -> None:
    prepare(corpus, tmp_path / "whole")
    interrupt(corpus, tmp_path / "shards")
    (tmp_path / "shards" / "tokenizer" / "vocab.txt").write_text("[PAD]\n")
    prepare(corpus, tmp_path / "shards")
    assert digest(tmp_path / "shards") == digest(tmp_path / "whole")


def test_overwrite_removes_the_trained_tokenizer(tmp_path: Path, corpus: Path) -> None:
    prepare(corpus, tmp_path / "shards")
    remove_shard_set(tmp_path / "shards")
    assert not list((tmp_path / "shards").iterdir())


def test_files_of_anything_else_are_refused_before_training(tmp_path: Path, corpus: Path, no_training: None) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.doc").write_text("years of work")
    with pytest.raises(BertsmithError, match=r"thesis\.doc"):
        prepare(corpus, tmp_path / "mine")
    with pytest.raises(StorageError, match="is a file"):
        prepare(corpus, corpus)


def test_a_corpus_without_text_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("\n \n")
    with pytest.raises(DataError, match=r"no text in .*empty\.txt"):
        prepare(tmp_path / "empty.txt", tmp_path / "shards")
    assert not (tmp_path / "shards").exists()


@pytest.mark.parametrize("parallel", [False, True])
def test_an_iterator_is_refused_because_it_is_read_twice(parallel: bool, tmp_path: Path) -> None:
    texts: list[Any] = [("iron", "쇠") if parallel else "iron"] * 9
    for one in (iter(texts), (text for text in texts)):
        with pytest.raises(DataError, match=r"iterator, which can be read only once.*: pass a list, or a tokenizer"):
            bs.prepare(one, tmp_path / "shards", vocab_size=300, parallel=parallel)
    with pytest.raises(DataError, match="iterator"):
        bs.prepare({"source": iter("ab"), "target": iter("ab"), "text": iter("ab")}, tmp_path / "shards")
    assert not (tmp_path / "shards").exists()


def test_settings_of_a_tokenizer_that_is_not_trained(tmp_path: Path, corpus: Path) -> None:
    with pytest.raises(ConfigError, match="vocab_size is for training a tokenizer"):
        bs.prepare([corpus], tmp_path / "shards", tokenizer=tmp_path / "t", vocab_size=300)
    with pytest.raises(ConfigError, match="prepare has no setting 'vocab_siz'; did you mean vocab_size"):
        bs.prepare([corpus], tmp_path / "shards", vocab_siz=300)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="prepare has no setting 'wrkers'; did you mean workers"):
        bs.prepare([corpus], tmp_path / "shards", tokenizer=tmp_path / "t", wrkers=2)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="target_tokenizer needs the tokenizer of the source texts"):
        bs.prepare([corpus], tmp_path / "shards", target_tokenizer=tmp_path / "t", parallel=True)


def test_the_preview_trains_on_its_sample(tmp_path: Path, corpus: Path) -> None:
    facts = run.preview([corpus], tokenizer=TRAINING)
    whole = prepare(corpus, tmp_path / "shards", held_out=0.0)
    assert facts["tokens_expected"] == whole["splits"]["train"]["tokens"], "the sample is the whole corpus"
    assert facts["tokenizer"] is None


def test_a_wrong_setting_does_not_remove_the_shards_that_overwrite_would_replace(tmp_path: Path, corpus: Path) -> None:
    shards = bs.prepare([corpus], tmp_path / "shards", vocab_size=300, quiet=True)
    for wrong in ({"tokenizer": tmp_path / "missing"}, {"settings": {"nonsense": 1}}, {"kind": "wordpeice"}):
        with pytest.raises(BertsmithError):
            bs.prepare([corpus], tmp_path / "shards", overwrite=True, **wrong)  # type: ignore[arg-type]
        assert (shards.folder / "index.json").is_file(), wrong
