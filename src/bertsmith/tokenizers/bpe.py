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
from bertsmith.tokenizers.folder import Folder, Merges, merges_files, merges_of, read_merges
from bertsmith.tokenizers.pretokenization import Units
from bertsmith.tokenizers.special_tokens import Specials, register
from bertsmith.tokenizers.tokenizer import LENGTH, Tokenizer

END = "</w>"
# <pad> is ours: GPT-1 pads with id 0, which is <unk>, and a batch must tell padding from unknown words.
SPECIALS = Specials("<pad>", "<unk>", start="_start_", separator="_delimiter_", end="_classify_")
LAST = ["_start_", "_delimiter_", "_classify_", "<pad>"]  # the last ids; <unk> is 0

REPLACED = {"—": "-", "–": "-", "―": "-", "…": "...", "´": "'"}
# Runs of one sign stand alone; so do English endings such as n't and 's, and full stops and quotes outside of words.
SIGNS = (
    r"""-+|~+|!+|"+|;+|\?+|\++|,+|\)+|\(+|\\+|/+|\*+|\[+|\]+|\}+|\{+|\|+|_+"""
    r"""|n't(?!\p{L})|'(?:s|re|ve|ll|d|m)(?!\p{L})|\.+(?![\p{L}\p{N}])|(?<!\p{L})'|'(?!\p{L})|[^\s\p{L}\p{N}\p{M}.']"""
)
# Python's white space includes these, Unicode's does not.
UNITS = Units(str.split, irregular=re.compile("[\x1c-\x1f]"))


def _normalizer() -> normalizers.Normalizer:
    replacements = [normalizers.Replace(old, new) for old, new in REPLACED.items()]
    return normalizers.Sequence([*replacements, normalizers.Lowercase()])


def _words() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split(Regex(SIGNS), "isolated")])


class Splitter:
    """One white-space delimited unit -> clean words and signs."""

    units = UNITS

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
        training.check(self.min_count)

    def splitter(self) -> Splitter:
        """For counting."""
        return Splitter()

    def learn(self, counts: dict[str, int], *, vocab_size: int) -> BPE:
        """A tokenizer of at most `vocab_size` tokens from counted words; empties `counts`."""
        room = vocab_size - len(LAST)
        if room < 10:
            raise ConfigError(f"vocab_size={vocab_size} is too small: {len(LAST) + 1} are special tokens")
        # Each character may stand within a word or end it: two thirds of the vocabulary at most.
        characters = training.by_coverage(counts, coverage=self.coverage, most=room // 3)
        training.keep_spelled(counts, characters)
        ends = sorted({word[-1] for word in counts})
        trainer = trainers.BpeTrainer(
            vocab_size=room,
            min_frequency=self.min_count,
            special_tokens=["<unk>", *characters, *(character + END for character in ends)],
            end_of_word_suffix=END,
            show_progress=False,
        )
        learned = training.train(models.BPE(), trainer, counts)
        return BPE.build([*training.by_id(learned), *LAST], merges_of(learned))


class BPE(Tokenizer):
    """GPT-1's tokenizer."""

    kind = "bpe"
    classes = ("OpenAIGPTTokenizer",)
    keys: ClassVar[Mapping[str, str]] = {
        "padding": "pad_token",
        "unknown": "unk_token",
        "start": "bos_token",
        "separator": "sep_token",
        "end": "eos_token",
    }
    units = UNITS

    @classmethod
    def build(
        cls,
        tokens: Sequence[str],
        merges: Merges,
        *,
        specials: Specials = SPECIALS,
        length: int = LENGTH,
        added: Iterable[tuple[int, tokenizers.AddedToken]] = (),
    ) -> BPE:
        """From a vocabulary by id and merges in their order."""
        ids = {token: number for number, token in enumerate(tokens)}
        model = models.BPE(ids, merges, unk_token=specials.unknown, end_of_word_suffix=END, fuse_unk=False)
        backend = tokenizers.Tokenizer(model)
        backend.normalizer = _normalizer()
        backend.pre_tokenizer = _words()
        backend.decoder = decoders.BPEDecoder(suffix=END)
        special_ids = register(backend, specials, added)
        start, middle, end = str(specials.start), str(specials.separator), str(specials.end)
        backend.post_processor = processors.TemplateProcessing(
            single=f"{start} $A {end}",
            pair=f"{start} $A {middle} $B {end}",
            special_tokens=[(token, special_ids[token]) for token in (start, middle, end)],
        )
        return cls(backend, specials=specials, length=length)

    @classmethod
    def from_folder(cls, contents: Folder) -> BPE:
        tokens, merges = read_merges(contents)
        specials = contents.specials(cls.keys, SPECIALS)
        added = contents.added()
        present = {*tokens, *(token.content for _, token in added)}
        # OpenAI's files end before the special tokens of fine-tuning.
        absent = [token for token in (*LAST, *specials.tokens()) if token in specials.tokens() and token not in present]
        first = len(present)
        added += [
            (first + place, tokenizers.AddedToken(token, normalized=False, special=True))
            for place, token in enumerate(dict.fromkeys(absent))
        ]
        length = contents.length(LENGTH)
        return cls.build(tokens, merges, specials=specials, length=length, added=added)

    @classmethod
    def recognises(cls, contents: Folder) -> bool:
        return contents.model.get("type") == "BPE" and contents.model.get("end_of_word_suffix") == END

    @cached_property
    def merges(self) -> Merges:
        """The merges, in the order in which they are applied."""
        return merges_of(self.backend)

    def rules(self) -> dict[str, Any]:
        return {"replaced": REPLACED, "signs": SIGNS, "end": END, "merges": self.merges}

    def settings(self) -> dict[str, Any]:
        # transformers' own OpenAIGPTTokenizer has other rules; this one takes tokenizer.json as it is.
        return {"tokenizer_class": "PreTrainedTokenizerFast"}

    def vocabulary_files(self) -> dict[str, bytes]:
        return merges_files(self.backend, self.merges)
