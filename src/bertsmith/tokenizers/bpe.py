"""Byte-pair encoding of characters, GPT-1's tokenizer (gpt1: text_utils.py): lower case, `</w>` ends a word.

# differs from the paper: without ftfy, which mends broken encodings, and without spaCy, whose English word rules are
# written here as one pattern; a line end is white space; texts that are too long are cut by the common rule (the longer
# one first) instead of each to half the positions less two.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers

from bertsmith.errors import ConfigError
from bertsmith.tokenizers import training
from bertsmith.tokenizers.folder import Merges, TokenizerFolder, merges_files, merges_of, read_merges
from bertsmith.tokenizers.pretokenization import Chunker
from bertsmith.tokenizers.special_tokens import SpecialTokens, register_special_tokens
from bertsmith.tokenizers.tokenizer import MAX_LENGTH, Tokenizer

END = "</w>"
# <pad> is ours: GPT-1 pads with id 0, which is <unk>, and a batch must tell padding from unknown words.
SPECIALS = SpecialTokens("<pad>", "<unk>", start="_start_", separator="_delimiter_", end="_classify_")
LAST = ["_start_", "_delimiter_", "_classify_", "<pad>"]  # the last ids; <unk> is 0

REPLACED = {"—": "-", "–": "-", "―": "-", "…": "...", "´": "'"}
# Runs of one sign stand alone; so do English endings such as n't and 's, and full stops and quotes outside of words.
SIGNS = (
    r"""-+|~+|!+|"+|;+|\?+|\++|,+|\)+|\(+|\\+|/+|\*+|\[+|\]+|\}+|\{+|\|+|_+"""
    r"""|n't(?!\p{L})|'(?:s|re|ve|ll|d|m)(?!\p{L})|\.+(?![\p{L}\p{N}])|(?<!\p{L})'|'(?!\p{L})|[^\s\p{L}\p{N}\p{M}.']"""
)
# Python's white space includes these, Unicode's does not.
UNITS = Chunker(str.split, irregular=re.compile("[\x1c-\x1f]"))


def _normalizer() -> normalizers.Normalizer:
    replacements = [normalizers.Replace(old, new) for old, new in REPLACED.items()]
    return normalizers.Sequence([*replacements, normalizers.Lowercase()])


def _words() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split(Regex(SIGNS), "isolated")])


class Splitter:
    """One white-space delimited unit -> clean words and signs."""

    chunker = UNITS

    def __init__(self) -> None:
        self.normalizer = _normalizer()
        self.words = _words()

    def __call__(self, unit: str) -> Sequence[str]:
        if unit.isascii() and unit.isalnum():
            return (unit.lower(),)
        return [word for word, _ in self.words.pre_tokenize_str(self.normalizer.normalize_str(unit))]

    def __reduce__(self) -> tuple[Any, ...]:
        return Splitter, ()


@dataclass(frozen=True)
class Config:
    """How a vocabulary is learned."""

    coverage: float = 0.9995  # share of all characters that the alphabet spells; the rest are unknown
    min_count: int = 2  # how often two neighbouring symbols must be seen to become one

    def __post_init__(self) -> None:
        training.check_min_count(self.min_count)

    def word_splitter(self) -> Splitter:
        """For counting."""
        return Splitter()

    def train(self, counts: dict[str, int], *, vocab_size: int) -> BPE:
        """A tokenizer of at most `vocab_size` tokens from counted words; empties `counts`."""
        room = vocab_size - len(LAST)
        if room < 10:
            raise ConfigError(f"vocab_size={vocab_size} is too small: {len(LAST) + 1} are special tokens")
        # Each character may stand within a word or end it: two thirds of the vocabulary at most.
        characters = training.choose_alphabet(counts, coverage=self.coverage, most=room // 3)
        training.drop_unspellable(counts, characters)
        ends = sorted({word[-1] for word in counts})
        trainer = trainers.BpeTrainer(
            vocab_size=room,
            min_frequency=self.min_count,
            special_tokens=["<unk>", *characters, *(character + END for character in ends)],
            end_of_word_suffix=END,
            show_progress=False,
        )
        learned = training.train_backend(models.BPE(), trainer, counts)
        return BPE.build([*training.tokens_by_id(learned), *LAST], merges_of(learned))


class BPE(Tokenizer):
    """GPT-1's tokenizer."""

    kind = "bpe"
    transformers_classes = ("OpenAIGPTTokenizer",)
    special_token_keys: ClassVar[Mapping[str, str]] = {
        "padding": "pad_token",
        "unknown": "unk_token",
        "start": "bos_token",
        "separator": "sep_token",
        "end": "eos_token",
    }
    default_chunker = UNITS

    @classmethod
    def build(
        cls,
        tokens: Sequence[str],
        merges: Merges,
        *,
        special_tokens: SpecialTokens = SPECIALS,
        max_length: int = MAX_LENGTH,
        added: Iterable[tuple[int, tokenizers.AddedToken]] = (),
    ) -> BPE:
        """From a vocabulary by id and merges in their order."""
        ids = {token: number for number, token in enumerate(tokens)}
        model = models.BPE(ids, merges, unk_token=special_tokens.unknown, end_of_word_suffix=END, fuse_unk=False)
        backend = tokenizers.Tokenizer(model)
        backend.normalizer = _normalizer()
        backend.pre_tokenizer = _words()
        backend.decoder = decoders.BPEDecoder(suffix=END)
        special_ids = register_special_tokens(backend, special_tokens, added)
        start, middle, end = str(special_tokens.start), str(special_tokens.separator), str(special_tokens.end)
        backend.post_processor = processors.TemplateProcessing(
            single=f"{start} $A {end}",
            pair=f"{start} $A {middle} $B {end}",
            special_tokens=[(token, special_ids[token]) for token in (start, middle, end)],
        )
        return cls(backend, special_tokens=special_tokens, max_length=max_length)

    @classmethod
    def from_folder(cls, contents: TokenizerFolder) -> BPE:
        tokens, merges = read_merges(contents)
        special_tokens = contents.special_tokens(cls.special_token_keys, SPECIALS)
        added = contents.added()
        present = {*tokens, *(token.content for _, token in added)}
        # OpenAI's files end before the special tokens of fine-tuning.
        absent = [
            token
            for token in (*LAST, *special_tokens.tokens())
            if token in special_tokens.tokens() and token not in present
        ]
        first = len(present)
        added += [
            (first + place, tokenizers.AddedToken(token, normalized=False, special=True))
            for place, token in enumerate(dict.fromkeys(absent))
        ]
        max_length = contents.max_length(MAX_LENGTH)
        return cls.build(tokens, merges, special_tokens=special_tokens, max_length=max_length, added=added)

    @classmethod
    def recognises(cls, contents: TokenizerFolder) -> bool:
        return contents.model.get("type") == "BPE" and contents.model.get("end_of_word_suffix") == END

    @cached_property
    def merges(self) -> Merges:
        """The merges, in the order in which they are applied."""
        return merges_of(self.backend)

    def rules(self) -> dict[str, Any]:
        return {"replaced": REPLACED, "signs": SIGNS, "end": END, "merges": self.merges}

    def transformers_config(self) -> dict[str, Any]:
        # transformers' own OpenAIGPTTokenizer has other rules; this one takes tokenizer.json as it is.
        return {"tokenizer_class": "PreTrainedTokenizerFast"}

    def vocabulary_files(self) -> dict[str, bytes]:
        return merges_files(self.backend, self.merges)
