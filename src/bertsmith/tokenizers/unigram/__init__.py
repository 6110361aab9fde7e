"""Unigram pieces, ALBERT's tokenizer (Kudo 2018; P-ALBERT): the rules of transformers' AlbertTokenizer exactly.

White space is written as `▁` before each word; a word is spelled by those pieces whose probabilities have the greatest
product. A character that no piece has is unknown, the rest of its word is not.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from bertsmith.errors import ConfigError, DataError
from bertsmith.tokenizers.folder import TokenizerFolder
from bertsmith.tokenizers.pretokenization import Chunker
from bertsmith.tokenizers.special_tokens import FrameTemplate, SpecialTokens, register_special_tokens
from bertsmith.tokenizers.tokenizer import MAX_LENGTH, Tokenizer
from bertsmith.tokenizers.training import HANGUL, choose_alphabet, should_strip_accents
from bertsmith.tokenizers.unigram.training import train_unigram

SPECIALS = SpecialTokens("<pad>", "<unk>", start="[CLS]", separator="[SEP]", end="[SEP]", mask="[MASK]")
# A unigram model spells words with every entry of its vocabulary. No word is spelled with a special token as long as
# there is any other way, for that costs less than this: as many characters, of a score above -30 each.
NEVER = -1000.0

NORMALIZERS = {"Replace", "NFKD", "StripAccents", "Lowercase", "Precompiled"}  # that ALBERT has

Pieces = Sequence[tuple[str, float]]


SPACE = "▁"
# Python's split() takes these for white space, ALBERT's rules do not.
UNITS = Chunker(str.split, irregular=re.compile("[\x1c-\x1f]"))
PLAIN = re.compile("[!-~가-힣]*")  # what lower() and SCRIPTS treat exactly as the real rules do
SCRIPTS = re.compile("[A-Za-z]+|[가-힣]+|[^A-Za-z가-힣]+")


def normalizer(*, lowercase: bool, strip_accents: bool, characters_map: bytes = b"") -> normalizers.Sequence:
    """As AlbertTokenizer builds it from its settings."""
    steps: list[Any] = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    if strip_accents:
        steps += [normalizers.NFKD(), normalizers.StripAccents()]
    if lowercase:
        steps.append(normalizers.Lowercase())
    if characters_map:
        steps.append(normalizers.Precompiled(characters_map))
    return normalizers.Sequence(steps)


class Rules(NamedTuple):
    """What becomes of a word before pieces are learned from it."""

    lowercase: bool = True
    strip_accents: bool = True
    symbols: str = ""  # characters that are words of their own
    split_scripts: bool = True  # as SentencePiece does: Latin, Hangul, Han with kana, ...; digits and signs are another
    split_digit_comma: bool = True


class Splitter:
    """One white-space delimited unit -> parts of its normalised words; the first part of a word begins with `▁`."""

    chunker = UNITS

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.normalizer = normalizer(lowercase=rules.lowercase, strip_accents=rules.strip_accents)
        self.scripts = pre_tokenizers.UnicodeScripts()
        inside = f"[^{re.escape(rules.symbols)}]" if rules.symbols else "."
        next_one = rf"(?!(?<=\d),){inside}" if rules.split_digit_comma else inside
        self.runs = re.compile(f"{inside}(?:{next_one})*|.", re.DOTALL)

    def __call__(self, unit: str) -> list[str]:
        return self._parts(unit, SPACE)

    def again(self, part: str) -> list[str]:
        """The same of a part that other rules have made."""
        if part == SPACE:
            return [part]
        return self._parts(part.removeprefix(SPACE), SPACE if part.startswith(SPACE) else "")

    def _parts(self, text: str, before: str) -> list[str]:
        rules = self.rules
        plain = PLAIN.fullmatch(text) is not None and (text.isascii() or not rules.strip_accents)
        if plain:
            text = text.replace("``", '"').replace("''", '"')
            text = text.lower() if rules.lowercase else text
        else:
            text = self.normalizer.normalize_str(text).replace(SPACE, " ")
        parts: list[str] = []
        for word in text.split():
            runs = self._scripts(word, plain=plain) if rules.split_scripts else [word]
            cut = [part for run in runs for part in self.runs.findall(run)]
            # A symbol stands alone, and so does the space before it.
            parts += [before, *cut] if before and cut[0] in rules.symbols else [before + cut[0], *cut[1:]]
            before = SPACE
        return parts

    def _scripts(self, word: str, *, plain: bool) -> list[str]:
        if plain:
            return SCRIPTS.findall(word)
        return [run for run, _ in self.scripts.pre_tokenize_str(word)]

    def __reduce__(self) -> tuple[Any, ...]:
        return Splitter, (self.rules,)


@dataclass(frozen=True)
class Config:
    """How a unigram vocabulary is learned."""

    lowercase: bool = True
    strip_accents: bool | None = None  # None: along with lower-casing, unless Hangul would fall apart
    coverage: float = 0.99995  # share of all characters that are pieces; the rest are unknown
    symbols: str = '()"-.–£€'  # characters that are never part of a longer piece
    split_scripts: bool = True  # no piece has characters of two scripts, nor letters and digits
    # differs from the paper: no piece has a comma after a digit; there, pieces that end so are taken apart afterwards
    split_digit_comma: bool = True

    def word_splitter(self) -> Splitter:
        """For counting. Accents stay: whether they are stripped is decided on the whole table, by `learn`."""
        return self._splitter(strip_accents=False)

    def train(self, counts: dict[str, int], *, vocab_size: int) -> Unigram:
        """A tokenizer of at most `vocab_size` tokens from counted words; empties `counts`."""
        specials = SPECIALS.tokens()
        strip = should_strip_accents(counts, lowercase=self.lowercase, asked=self.strip_accents)
        if strip:
            counts = self._stripped(counts)
        rules = normalizer(lowercase=self.lowercase, strip_accents=strip)
        # The letters of special tokens are pieces, so that texts which spell one never get its id.
        required = sorted(set(SPACE).union(self.symbols, *map(rules.normalize_str, specials)))
        room = vocab_size - len(specials) - len(required)
        if room < 1:
            least = vocab_size - room + 1
            raise ConfigError(f"vocab_size={vocab_size} is too small: a unigram vocabulary has at least {least}")
        characters = choose_alphabet(counts, coverage=self.coverage, most=max(1, room // 3))
        _cut_at_unknown(counts, frozenset(characters).union(required))
        pieces = train_unigram(counts, vocab_size=vocab_size - len(specials), required=required)
        scores = [(token, NEVER) for token in specials]
        return Unigram.build([*scores, *pieces], lowercase=self.lowercase, strip_accents=strip)

    def _splitter(self, *, strip_accents: bool) -> Splitter:
        return Splitter(Rules(self.lowercase, strip_accents, self.symbols, self.split_scripts, self.split_digit_comma))

    def _stripped(self, counts: dict[str, int]) -> dict[str, int]:
        """The table as it would be had accents been stripped; words with Hangul go, its characters are unknown then."""
        split = self._splitter(strip_accents=True)
        stripped: dict[str, int] = {}
        while counts:
            word, count = counts.popitem()
            if not HANGUL.search(word):
                for part in split.again(word):
                    stripped[part] = stripped.get(part, 0) + count
        return stripped


def _cut_at_unknown(counts: dict[str, int], known: frozenset[str]) -> None:
    """Words without the characters that will be unknown: what stands between them."""
    for word in [word for word in counts if not known.issuperset(word)]:
        count = counts.pop(word)
        for part in "".join(character if character in known else " " for character in word).split():
            counts[part] = counts.get(part, 0) + count


class Unigram(Tokenizer):
    """ALBERT's tokenizer."""

    kind = "unigram"
    transformers_classes = ("AlbertTokenizer",)
    special_token_keys: ClassVar[Mapping[str, str]] = {
        "padding": "pad_token",
        "unknown": "unk_token",
        "start": "cls_token",
        "separator": "sep_token",
        "end": "sep_token",
        "mask": "mask_token",
    }
    template = FrameTemplate(pair_segments=(0, 0, 0, 1, 1))
    default_chunker = UNITS

    @classmethod
    def build(
        cls,
        pieces: Pieces,
        *,
        lowercase: bool = True,
        strip_accents: bool = True,
        characters_map: bytes = b"",
        special_tokens: SpecialTokens = SPECIALS,
        max_length: int = MAX_LENGTH,
        added: Iterable[tuple[int, tokenizers.AddedToken]] = (),
    ) -> Unigram:
        """From pieces with log-probabilities, by id; `characters_map` as SentencePiece compiles its normalisation."""
        never = frozenset(special_tokens.tokens())
        scores = [(piece, NEVER if piece in never else score) for piece, score in pieces]
        unknown = next((number for number, (piece, _) in enumerate(pieces) if piece == special_tokens.unknown), None)
        if unknown != 1:
            raise DataError(
                f"{special_tokens.unknown} has id {unknown} in this vocabulary: transformers' ALBERT has it as 1"
            )
        backend = tokenizers.Tokenizer(models.Unigram(scores, unk_id=unknown, byte_fallback=False))
        backend.normalizer = normalizer(lowercase=lowercase, strip_accents=strip_accents, characters_map=characters_map)
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(SPACE, prepend_scheme="always")]
        )
        backend.decoder = decoders.Metaspace(SPACE, prepend_scheme="always")
        ids = register_special_tokens(backend, special_tokens, added)
        start, separator = special_tokens.start, special_tokens.separator
        backend.post_processor = processors.TemplateProcessing(
            single=f"{start}:0 $A:0 {separator}:0",
            pair=f"{start}:0 $A:0 {separator}:0 $B:1 {separator}:1",
            special_tokens=[(token, number) for token, number in ids.items() if token in (start, separator)],
        )
        return cls(backend, special_tokens=special_tokens, max_length=max_length)

    def is_continuation(self) -> NDArray[np.bool_]:
        """A piece without a space before it, unless it has neither letter nor digit: signs are words of their own.

        albert: create_pretraining_data.py takes every piece with other letters than a to z for a word of its own.
        """
        # differs from the paper: pieces of all scripts, and digits, go on with their word
        return np.array(
            [
                number not in self.special_ids and not piece.startswith(SPACE) and any(map(str.isalnum, piece))
                for number, piece in enumerate(self.tokens())
            ]
        )

    @classmethod
    def from_folder(cls, contents: TokenizerFolder) -> Unigram:
        if contents.model.get("type") != "Unigram":
            raise DataError(_no_definition(contents))
        return cls.build(
            [(str(piece), float(score)) for piece, score in contents.model["vocab"]],
            **_rules(contents, named=contents.class_name in cls.transformers_classes),
            special_tokens=contents.special_tokens(cls.special_token_keys, SPECIALS),
            max_length=contents.max_length(MAX_LENGTH),
            added=contents.added(),
        )

    @classmethod
    def recognises(cls, contents: TokenizerFolder) -> bool:
        if contents.definition:
            return contents.model.get("type") == "Unigram"
        return contents.has("spiece.model")

    @cached_property
    def _definition(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.backend.to_str())
        return found

    def rules(self) -> dict[str, Any]:
        steps = {step["type"]: step for step in self._definition["normalizer"]["normalizers"]}
        characters_map = steps.get("Precompiled", {}).get("precompiled_charsmap", "")
        return {
            "lowercase": "Lowercase" in steps,
            "strip_accents": "StripAccents" in steps,
            "characters_map": hashlib.sha256(characters_map.encode()).hexdigest() if characters_map else "",
            "scores": [score for _, score in self._definition["model"]["vocab"]],
        }

    def transformers_config(self) -> dict[str, Any]:
        rules = self.rules()
        return {
            "tokenizer_class": "AlbertTokenizer",
            "do_lower_case": rules["lowercase"],
            # Always said: transformers 5 builds its normalizer from these and would take Hangul apart.
            "keep_accents": not rules["strip_accents"],
            "remove_space": True,
            "bos_token": self.special_tokens.start,
            "eos_token": self.special_tokens.end,
            "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],  # 5.x has no segments by default
        }


def _no_definition(contents: TokenizerFolder) -> str:
    if contents.has("spiece.model") and not contents.definition:
        return (
            f"{contents.path} has a spiece.model but no tokenizer.json: write one with transformers, "
            "`AutoTokenizer.from_pretrained(folder).save_pretrained(other_folder)`, and give that folder"
        )
    found = contents.model.get("type") or "no tokenizer.json"
    return f"{contents.path}: a unigram tokenizer has a tokenizer.json with a Unigram model, here is {found}"


def _rules(contents: TokenizerFolder, *, named: bool) -> dict[str, Any]:
    """The rules of a folder: AlbertTokenizer's settings where it is `named`, else those in tokenizer.json."""
    written = contents.part("normalizer")
    steps = {step.get("type"): step for step in written.get("normalizers", [written] if written else [])}
    splits = [step.get("type") for step in contents.part("pre_tokenizer").get("pretokenizers", [])]
    wanted = splits == ["WhitespaceSplit", "Metaspace"] and set(steps) <= NORMALIZERS
    if not wanted or contents.model.get("byte_fallback") or contents.config.get("add_prefix_space") is False:
        raise DataError(f"{contents.path} has not ALBERT's rules, the only ones that a unigram tokenizer has here")
    stated = contents.config if named else {"do_lower_case": "Lowercase" in steps, "keep_accents": "NFKD" not in steps}
    return {
        "lowercase": bool(stated.get("do_lower_case", True)),
        "strip_accents": not stated.get("keep_accents", False),
        "characters_map": base64.b64decode(steps.get("Precompiled", {}).get("precompiled_charsmap", "")),
    }
