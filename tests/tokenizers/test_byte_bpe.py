"""RoBERTa's byte-level BPE: format, folders, and lossless round trips."""

from __future__ import annotations

import argparse
import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers, trainers

from bertsmith.errors import ConfigError, DataError
from bertsmith.tokenizers import training
from bertsmith.tokenizers.byte_bpe import ByteBPE, Config, Splitter
from bertsmith.tokenizers.tokenizer import load

TEXT = Path(argparse.__file__).read_text(encoding="utf-8") + "서울은 대한민국의 수도이다. 'tis naïve, isn't it?\n" * 3


@cache
def learned(size: int = 600) -> ByteBPE:
    return Config().train(training.count_words([TEXT], Splitter()), vocab_size=size)


def test_ids_have_the_order_of_roberta() -> None:
    tokenizer = learned()
    tokens = tokenizer.tokens()
    assert tokens[:4] == ["<s>", "<pad>", "</s>", "<unk>"]
    assert tokens[-1] == "<mask>"
    assert len(tokens) == 600
    assert set(tokens[4:260]) == set(pre_tokenizers.ByteLevel.alphabet())


def test_frames_look_like_robertas() -> None:
    tokenizer = learned()
    a, b = tokenizer.encode("one"), tokenizer.encode(" two")
    assert tokenizer.frame(a, max_length=20).ids.tolist() == [0, *a.ids, 2]
    pair = tokenizer.frame(a, b, max_length=20)
    assert pair.ids.tolist() == [0, *a.ids, 2, 2, *b.ids, 2]
    assert not pair.segment_ids.any()


@settings(deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_every_text_round_trips(text: str) -> None:
    tokenizer = learned()
    encoded = tokenizer.encode(text)
    assert tokenizer.unknown_id not in encoded.ids
    assert tokenizer.decode(encoded.ids) == text
    assert tokenizer.encode_ids([text])[0].tolist() == encoded.ids.tolist()


def test_vocabularies_are_those_of_the_tokenizers_library() -> None:
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=599,
        min_frequency=2,
        special_tokens=["<s>", "<pad>", "</s>", "<unk>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator([TEXT], trainer)
    theirs = backend.get_vocab()
    assert sorted(theirs, key=lambda token: theirs[token]) == learned().tokens()[:-1]
    assert json.loads(backend.to_str())["model"]["merges"] == [list(pair) for pair in learned().merges]


def test_words_are_counted_as_the_pattern_cuts_them() -> None:
    text = "it's  'sé 'say\n\n\tyou'll x\u00a0y 서울은,  12ab\u3000end  "
    pattern = pre_tokenizers.ByteLevel(add_prefix_space=False)
    expected = [word for word, _ in pattern.pre_tokenize_str(text)]
    splitter = Splitter()
    assert [word for unit in splitter.chunker.chunks(text) for word in splitter(unit)] == expected


def test_offsets_exclude_the_space_before_a_word() -> None:
    encoded = learned().encode("parser  서울은")
    assert "parser  서울은"[encoded.offsets[0, 0] : encoded.offsets[0, 1]].strip() == "parser"[: encoded.offsets[0, 1]]
    assert encoded.offsets[-1].tolist() == [10, 11]


def test_a_mask_token_in_a_text_includes_the_space_before_it() -> None:
    tokenizer = learned()
    read = tokenizer.encode("the <mask> of", parse_special_tokens=True)
    assert [tokenizer.id_to_token(number) for number in read.ids[-2:]] == ["<mask>", "Ġof"]


def test_a_folder_of_vocabulary_and_merges_is_enough(tmp_path: Path) -> None:
    tokenizer = learned()
    tokenizer.save(tmp_path)
    assert (tmp_path / "merges.txt").read_text(encoding="utf-8").startswith("#version: 0.2\n")
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "special_tokens_map.json").unlink()
    assert load(tmp_path).fingerprint == tokenizer.fingerprint
    (tmp_path / "tokenizer_config.json").unlink()
    assert load(tmp_path).fingerprint == tokenizer.fingerprint
    with (tmp_path / "merges.txt").open("a", encoding="utf-8") as file:
        file.write("only-one\n")
    with pytest.raises(DataError, match="'only-one', not two symbols"):
        load(tmp_path)
    (tmp_path / "merges.txt").unlink()
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "RobertaTokenizer"}')
    with pytest.raises(DataError, match=r"has no merges\.txt, which RobertaTokenizer needs"):
        load(tmp_path)


def test_folders_that_put_a_space_first_are_followed(tmp_path: Path) -> None:
    tokenizer = ByteBPE.build(learned().tokens(), learned().merges, add_prefix_space=True)
    texts = ["the parser", " the", "", "naïve", "\nthe  end "]
    tokenizer.save(tmp_path)
    loaded = load(tmp_path)
    assert loaded.fingerprint == tokenizer.fingerprint != learned().fingerprint
    assert loaded.encode("the").ids.tolist() == learned().encode(" the").ids.tolist()
    slow = [loaded.encode(text).ids for text in texts]
    assert loaded.encode_ids(texts)[0].tolist() == np.concatenate(slow).tolist()


def test_a_vocabulary_must_hold_all_bytes() -> None:
    with pytest.raises(ConfigError, match="vocab_size=260: expected at least 261"):
        Config().train({"a": 1}, vocab_size=260)
    assert Config().train({"a": 1}, vocab_size=261).vocab_size == 261
