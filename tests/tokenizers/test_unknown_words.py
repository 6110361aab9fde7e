"""The share of unknown words."""

from __future__ import annotations

from collections.abc import Iterator

from bertsmith.reports.terminal import encoding_facts
from bertsmith.tokenizers import byte_bpe, unigram
from bertsmith.tokenizers.tokenizer import Tokenizer
from bertsmith.tokenizers.unknown_words import UnknownWords, unknown_words
from bertsmith.tokenizers.wordpiece import WordPiece
from bertsmith.tokenizers.words import Rules, Words

TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "##s", "sat", ".", "北"]


def test_share_and_the_most_frequent_examples() -> None:
    tokenizer = WordPiece.build(TOKENS)
    texts = ["The cats sat.", "the dog sat. dog bird", "fish", "bird dog fish ant"]
    assert unknown_words(tokenizer, texts) == UnknownWords(8 / 15, ("dog", "bird", "fish"))
    assert unknown_words(tokenizer, ["the cats"]) == UnknownWords(0.0, ())
    assert unknown_words(tokenizer, ["", " "]) == UnknownWords(0.0, ())
    assert unknown_words(tokenizer, ["北京"]) == UnknownWords(0.5, ("京",))


def test_a_word_with_one_unknown_character_is_unknown() -> None:
    pieces = [(token, 0.0) for token in unigram.SPECIALS.tokens()]
    pieces += [("▁", -3.0), ("▁cat", -1.0), ("a", -2.0), ("s", -2.0)]
    tokenizer = unigram.Unigram.build(pieces)
    assert unknown_words(tokenizer, ["cat cats caqs"]) == UnknownWords(1 / 3, ("caqs",))


def test_words_of_every_shape_are_unknown() -> None:
    rules = Rules(unknowns="classes")
    tokenizer = Words([*rules.reserved(), "the", "iron"], word_rules=rules)
    assert unknown_words(tokenizer, ["the red-hot iron 1,000 anvil"]).share == 3 / 5
    encoded = [tokenizer.encode("the red-hot iron 1,000 anvil")]
    assert encoding_facts(tokenizer, ["the red-hot iron 1,000 anvil"], encoded)["unknown"] == 3


def test_no_word_is_unknown_to_bytes() -> None:
    tokenizer = byte_bpe.ByteBPE.build(["<pad>", "<unk>", "<s>", "</s>", "<mask>", *byte_bpe.BYTES], [])
    assert unknown_words(tokenizer, ["日本 語"]) == UnknownWords(0.0, ())


def test_the_sample_is_bounded() -> None:
    read = 0

    def endless() -> Iterator[str]:
        nonlocal read
        while True:
            read += 1
            yield "dog " * 1000

    tokenizer: Tokenizer = WordPiece.build(TOKENS)
    assert unknown_words(tokenizer, endless(), max_words=10_000).share == 1.0
    assert read <= 16
