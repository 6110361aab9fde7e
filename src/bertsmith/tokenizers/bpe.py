"""Byte-pair encoding of characters, GPT-1's tokenizer (gpt1: text_utils.py): lower case, `</w>` ends a word.

# differs from the paper: no ftfy, which repairs broken encodings, and no spaCy, whose English rules are one pattern;
# a line end is white space; long pairs are truncated by the common rule (the longer text first) instead of each
# text to half the positions less two.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Unpack

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers

from bertsmith.tokenizers import training
from bertsmith.tokenizers.folder import Merges, TokenizerFolder, backend_merges
from bertsmith.tokenizers.pretokenization import WHITESPACE_CHUNKER
from bertsmith.tokenizers.special_tokens import BOS_KEYS, SpecialTokens
from bertsmith.tokenizers.tokenizer import BuildOptions, MergesTokenizer

END = "</w>"
# <pad> is an addition: GPT-1 pads with id 0, which is <unk>, but batches must distinguish padding from unknown words.
SPECIALS = SpecialTokens("<pad>", "<unk>", start="_start_", separator="_delimiter_", end="_classify_")
LAST = ["_start_", "_delimiter_", "_classify_", "<pad>"]  # the last ids; <unk> is 0

REPLACED = {"—": "-", "–": "-", "―": "-", "…": "...", "´": "'"}
# Runs of one sign are words, and so are contractions such as n't and 's, and full stops and quotes outside of words.
SIGNS = (
    r"""-+|~+|!+|"+|;+|\?+|\++|,+|\)+|\(+|\\+|/+|\*+|\[+|\]+|\}+|\{+|\|+|_+"""
    r"""|n't(?!\p{L})|'(?:s|re|ve|ll|d|m)(?!\p{L})|\.+(?![\p{L}\p{N}])|(?<!\p{L})'|'(?!\p{L})|[^\s\p{L}\p{N}\p{M}.']"""
)


NORMALIZER = normalizers.Sequence([*itertools.starmap(normalizers.Replace, REPLACED.items()), normalizers.Lowercase()])
WORDS = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split(Regex(SIGNS), "isolated")])


class Splitter:
    """One chunk -> normalised words and signs."""

    chunker = WHITESPACE_CHUNKER

    def __call__(self, chunk: str) -> Sequence[str]:
        if chunk.isascii() and chunk.isalnum():
            return (chunk.lower(),)
        return [word for word, _ in WORDS.pre_tokenize_str(NORMALIZER.normalize_str(chunk))]


@dataclass(frozen=True)
class Config:
    """Training of a vocabulary."""

    coverage: float = 0.9995  # share of all characters that the alphabet contains; the rest are unknown
    min_count: int = 2  # minimum count of a pair of symbols that is merged

    def __post_init__(self) -> None:
        training.check_min_count(self.min_count)

    def word_splitter(self) -> Splitter:
        return Splitter()

    def train(self, counts: dict[str, int], *, vocab_size: int) -> BPE:
        """A tokenizer of at most `vocab_size` tokens from word counts; empties `counts`."""
        always = training.ascii_alphabet(lowercase=True)
        left = training.remaining_tokens(vocab_size, len(LAST) + 1 + 2 * len(always))
        # Each other character may be inside a word or end it: two thirds of the rest at most.
        characters = training.choose_alphabet(counts, coverage=self.coverage, always=always, most=left // 3)
        training.drop_unspellable(counts, characters)
        ends = sorted({*always, *(word[-1] for word in counts)})
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size - len(LAST),
            min_frequency=self.min_count,
            special_tokens=["<unk>", *characters, *(character + END for character in ends)],
            end_of_word_suffix=END,
            show_progress=False,
        )
        trained = training.train_backend(models.BPE(), trainer, counts)
        return BPE.build([*training.tokens_by_id(trained), *LAST], backend_merges(trained))


class BPE(MergesTokenizer):
    """GPT-1's tokenizer."""

    kind = "bpe"
    transformers_classes = ("OpenAIGPTTokenizer",)
    default_special_tokens = SPECIALS
    special_token_keys = BOS_KEYS
    default_chunker = WHITESPACE_CHUNKER

    @classmethod
    def build(cls, tokens: Sequence[str], merges: Merges, **options: Unpack[BuildOptions]) -> BPE:
        """From tokens by id and merges in order of application."""
        ids = {token: number for number, token in enumerate(tokens)}
        unknown = options.get("special_tokens", SPECIALS).unknown
        model = models.BPE(ids, merges, unk_token=unknown, end_of_word_suffix=END, fuse_unk=False)
        backend = tokenizers.Tokenizer(model)
        backend.normalizer = NORMALIZER
        backend.pre_tokenizer = WORDS
        backend.decoder = decoders.BPEDecoder(suffix=END)
        return cls.from_backend(backend, **options)

    @classmethod
    def from_folder(cls, contents: TokenizerFolder) -> BPE:
        tokens, merges = contents.merges()
        options = cls.folder_options(contents)
        special_tokens = options["special_tokens"].tokens()
        present = {*tokens, *(token.content for _, token in options["added"])}
        # OpenAI's files end before the special tokens of fine-tuning.
        ordered = dict.fromkeys(token for token in (*LAST, *special_tokens) if token in special_tokens)
        absent = [
            tokenizers.AddedToken(token, normalized=False, special=True) for token in ordered if token not in present
        ]
        options["added"] = [*options["added"], *enumerate(absent, len(present))]
        return cls.build(tokens, merges, **options)

    @classmethod
    def recognises(cls, contents: TokenizerFolder) -> bool:
        return contents.model.get("type") == "BPE" and contents.model.get("end_of_word_suffix") == END

    def rules(self) -> dict[str, Any]:
        return {"replaced": REPLACED, "signs": SIGNS, "end": END, "merges": self.merges}

    def transformers_config(self) -> dict[str, Any]:
        # OpenAIGPTTokenizer of transformers has other rules; this class reads tokenizer.json as it is.
        return {"tokenizer_class": "PreTrainedTokenizerFast"}
