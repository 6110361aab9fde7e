"""Unigram pieces, ALBERT's tokenizer (Kudo 2018; P-ALBERT): the rules of transformers' AlbertTokenizer exactly.

White space is written as `▁` before each word. A word is split into the pieces with the greatest product of
probabilities. A character without a piece is unknown, the rest of its word is not.

Pieces must not span two scripts, a symbol, or a digit and its comma. The words that pieces are trained on are split
there, so that encoding needs no such rule.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Unpack

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import decoders, models, normalizers, pre_tokenizers

from bertsmith.errors import DataError
from bertsmith.tokenizers import sentencepiece
from bertsmith.tokenizers.folder import TokenizerFolder
from bertsmith.tokenizers.pretokenization import WHITESPACE_CHUNKER, Chunker
from bertsmith.tokenizers.special_tokens import CLS_KEYS, FrameTemplate, SpecialTokens
from bertsmith.tokenizers.tokenizer import BuildOptions, Tokenizer
from bertsmith.tokenizers.training import (
    ascii_alphabet,
    choose_alphabet,
    remaining_tokens,
    should_strip_accents,
    strip_accents,
)
from bertsmith.tokenizers.unigram.training import train_unigram

SPECIALS = SpecialTokens("<pad>", "<unk>", start="[CLS]", separator="[SEP]", end="[SEP]", mask="[MASK]")
# A unigram model may use every entry of its vocabulary. This score is below that of any other split of the characters
# of a special token (above -30 each), so that special tokens are never used.
UNUSED_SCORE = -1000.0

Pieces = Sequence[tuple[str, float]]

SPACE = "▁"
PLAIN = re.compile("[!-~가-힣]*")  # for these, lower() and SCRIPTS equal the general rules
UNICODE_SCRIPTS = pre_tokenizers.UnicodeScripts()
SCRIPTS = re.compile("[A-Za-z]+|[가-힣]+|[^A-Za-z가-힣]+")


def normalizer(*, lowercase: bool, strip_accents: bool, characters_map: bytes = b"") -> normalizers.Sequence:
    """AlbertTokenizer's normalizer for these settings."""
    steps: list[Any] = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    if strip_accents:
        steps += [normalizers.NFKD(), normalizers.StripAccents()]
    if lowercase:
        steps.append(normalizers.Lowercase())
    if characters_map:
        steps.append(normalizers.Precompiled(characters_map))
    return normalizers.Sequence(steps)


@dataclass
class Splitter:
    """One chunk -> parts of its normalised words; the first part of a word begins with `▁`."""

    lowercase: bool = True
    strip_accents: bool = True
    symbols: str = ""  # characters that are separate words
    split_scripts: bool = True  # as in SentencePiece: Latin, Hangul, Han with kana, ...; digits and signs
    split_digit_comma: bool = True
    chunker: ClassVar[Chunker] = WHITESPACE_CHUNKER

    def __post_init__(self) -> None:
        self.normalizer = normalizer(lowercase=self.lowercase, strip_accents=self.strip_accents)
        inside = f"[^{re.escape(self.symbols)}]" if self.symbols else "."
        following = rf"(?!(?<=\d),){inside}" if self.split_digit_comma else inside
        self.runs = re.compile(f"{inside}(?:{following})*|.", re.DOTALL)

    def __call__(self, chunk: str) -> list[str]:
        return self._parts(chunk, SPACE)

    def split_part(self, part: str) -> list[str]:
        """Splits a part that a splitter with other rules produced."""
        if part == SPACE:
            return [part]
        return self._parts(part.removeprefix(SPACE), SPACE if part.startswith(SPACE) else "")

    def _parts(self, text: str, before: str) -> list[str]:
        plain = PLAIN.fullmatch(text) is not None and (text.isascii() or not self.strip_accents)
        if plain:
            text = text.replace("``", '"').replace("''", '"')
            text = text.lower() if self.lowercase else text
        else:
            text = self.normalizer.normalize_str(text).replace(SPACE, " ")
        parts: list[str] = []
        for word in text.split():
            runs = self._scripts(word, plain=plain) if self.split_scripts else [word]
            cut = [part for run in runs for part in self.runs.findall(run)]
            # A symbol is a separate part, and so is the space before it.
            parts += [before, *cut] if before and cut[0] in self.symbols else [before + cut[0], *cut[1:]]
            before = SPACE
        return parts

    def _scripts(self, word: str, *, plain: bool) -> list[str]:
        if plain:
            return SCRIPTS.findall(word)
        return [run for run, _ in UNICODE_SCRIPTS.pre_tokenize_str(word)]


@dataclass(frozen=True)
class Config:
    """Training of a unigram vocabulary."""

    lowercase: bool = True
    strip_accents: bool | None = None  # None: if lower-casing, unless the corpus has Hangul, which would be decomposed
    coverage: float = 0.99995  # share of all characters with a piece; the rest are unknown
    symbols: str = '()"-.–£€'  # characters that are never inside a longer piece
    split_scripts: bool = True  # no piece has characters of two scripts, or letters and digits
    # differs from the paper: no piece has a comma after a digit; there, such pieces are split afterwards
    split_digit_comma: bool = True

    def word_splitter(self) -> Splitter:
        """Keeps accents: `train` decides on all counts whether they are stripped."""
        return self._splitter(strip_accents=False)

    def train(self, counts: dict[str, int], *, vocab_size: int) -> Unigram:
        """A tokenizer of at most `vocab_size` tokens from word counts; empties `counts`."""
        specials = SPECIALS.tokens()
        strip = should_strip_accents(counts, lowercase=self.lowercase, requested=self.strip_accents)
        if strip:
            counts = strip_accents(counts, self._splitter(strip_accents=True).split_part)
        rules = normalizer(lowercase=self.lowercase, strip_accents=strip)
        # The letters of special tokens are pieces, so that their spelling in a text never gets their id.
        always = ascii_alphabet(lowercase=self.lowercase)
        required = sorted(set(always + SPACE).union(self.symbols, *map(rules.normalize_str, specials)))
        left = remaining_tokens(vocab_size, len(specials) + len(required))
        characters = choose_alphabet(counts, coverage=self.coverage, always="".join(required), most=left // 3)
        _split_at_unknown(counts, frozenset(characters))
        pieces = train_unigram(counts, vocab_size=vocab_size - len(specials), required=required)
        scores = [(token, UNUSED_SCORE) for token in specials]
        return Unigram.build([*scores, *pieces], lowercase=self.lowercase, strip_accents=strip)

    def _splitter(self, *, strip_accents: bool) -> Splitter:
        return Splitter(self.lowercase, strip_accents, self.symbols, self.split_scripts, self.split_digit_comma)


def _split_at_unknown(counts: dict[str, int], known: frozenset[str]) -> None:
    """Splits words at characters that will be unknown."""
    for word in [word for word in counts if not known.issuperset(word)]:
        count = counts.pop(word)
        for part in "".join(character if character in known else " " for character in word).split():
            counts[part] = counts.get(part, 0) + count


class Unigram(Tokenizer):
    """ALBERT's tokenizer."""

    kind = "unigram"
    transformers_classes = ("AlbertTokenizer",)
    default_special_tokens = SPECIALS
    special_token_keys = CLS_KEYS
    template = FrameTemplate(pair_segments=(0, 0, 0, 1, 1))
    default_chunker = WHITESPACE_CHUNKER

    @classmethod
    def build(
        cls,
        pieces: Pieces,
        *,
        lowercase: bool = True,
        strip_accents: bool = True,
        characters_map: bytes = b"",
        **options: Unpack[BuildOptions],
    ) -> Unigram:
        """From pieces with log-probabilities, by id; `characters_map` is SentencePiece's compiled normalisation."""
        special_tokens = options.get("special_tokens", SPECIALS)
        unused = frozenset(special_tokens.tokens())
        scores = [(piece, UNUSED_SCORE if piece in unused else score) for piece, score in pieces]
        unknown = next((number for number, (piece, _) in enumerate(pieces) if piece == special_tokens.unknown), None)
        if unknown != 1:
            raise DataError(
                f"{special_tokens.unknown} has id {unknown} in this vocabulary, expected 1 as in transformers' ALBERT"
            )
        backend = tokenizers.Tokenizer(models.Unigram(scores, unk_id=unknown, byte_fallback=False))
        backend.normalizer = normalizer(lowercase=lowercase, strip_accents=strip_accents, characters_map=characters_map)
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(SPACE, prepend_scheme="always")]
        )
        backend.decoder = decoders.Metaspace(SPACE, prepend_scheme="always")
        return cls.from_backend(backend, **options)

    def is_continuation(self) -> NDArray[np.bool_]:
        """Pieces without `▁` that have a letter or digit: signs are separate words.

        In albert: create_pretraining_data.py, every piece with letters other than a to z is a separate word.
        """
        # differs from the paper: pieces of all scripts, and digits, continue their word
        inner = [not piece.startswith(SPACE) and any(map(str.isalnum, piece)) for piece in self.tokens()]
        continues = np.array(inner)
        continues[list(self.special_ids)] = False
        return continues

    @classmethod
    def from_folder(cls, contents: TokenizerFolder) -> Unigram:
        if not contents.definition:
            return cls._from_sentencepiece(contents)
        if contents.model.get("type") != "Unigram":
            raise DataError(f"its tokenizer.json has a {contents.model.get('type')} model, expected Unigram")
        return cls.build(
            [(str(piece), float(score)) for piece, score in contents.model["vocab"]],
            **_rules(contents, named_class=contents.class_name in cls.transformers_classes),
            **cls.folder_options(contents),
        )

    @classmethod
    def _from_sentencepiece(cls, contents: TokenizerFolder) -> Unigram:
        model = sentencepiece.read_model(contents.path / sentencepiece.ALBERT_MODEL)
        sentencepiece.note_rules(contents, sentencepiece.ALBERT_MODEL, model)
        options = cls.folder_options(contents)
        own = dict(model.added())
        options["added"] = [*own.items(), *((number, token) for number, token in options["added"] if number not in own)]
        rules = _settings(contents) | {"characters_map": model.characters_map}
        return cls.build(model.pieces, **rules, **options)

    @classmethod
    def recognises(cls, contents: TokenizerFolder) -> bool:
        if contents.definition:
            return contents.model.get("type") == "Unigram"
        return not contents.class_name and contents.has("spiece.model")

    @cached_property
    def _definition(self) -> dict[str, Any]:
        definition: dict[str, Any] = json.loads(self.backend.to_str())
        return definition

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
            "do_lower_case": rules["lowercase"],
            # Always present: transformers 5 builds its normalizer from these and would decompose Hangul.
            "keep_accents": not rules["strip_accents"],
            "remove_space": True,
            "bos_token": self.special_tokens.start,
            "eos_token": self.special_tokens.end,
            # Without segments by default in 5.x.
            "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
        }


def _settings(contents: TokenizerFolder) -> dict[str, Any]:
    """AlbertTokenizer's settings in tokenizer_config.json."""
    if contents.config.get("add_prefix_space") is False:
        raise DataError("add_prefix_space=false is not among ALBERT's rules, which are those of a unigram tokenizer")
    lowercase = contents.setting("do_lower_case", default=True)
    if contents.lowercase not in (None, lowercase):
        contents.notes.append(
            f"lowercase={str(contents.lowercase).lower()} as requested, although AlbertTokenizer's do_lower_case "
            f"is {str(lowercase).lower()} in this folder"
        )
        lowercase = contents.lowercase
    return {"lowercase": lowercase, "strip_accents": not contents.setting("keep_accents", default=False)}


def _rules(contents: TokenizerFolder, *, named_class: bool) -> dict[str, Any]:
    """The rules of a folder: AlbertTokenizer's settings if it names that class, else those of tokenizer.json."""
    normalizer_config = contents.section("normalizer")
    steps = {
        step.get("type"): step
        for step in normalizer_config.get("normalizers", [normalizer_config] if normalizer_config else [])
    }
    own = {"lowercase": "Lowercase" in steps, "strip_accents": "NFKD" in steps}
    characters_map = base64.b64decode(steps.get("Precompiled", {}).get("precompiled_charsmap", ""))
    return (_settings(contents) if named_class else own) | {"characters_map": characters_map}
