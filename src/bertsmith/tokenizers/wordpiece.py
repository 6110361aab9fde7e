"""WordPiece, BERT's tokenizer (P-BERT 3, bert: tokenization.py): the rules of transformers' BertTokenizerFast exactly.

A word is spelled by the longest pieces of the vocabulary, `##` before those that continue it; a word that cannot be
spelled, or of more than 100 characters, is unknown as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from bertsmith.errors import ConfigError, DataError
from bertsmith.tokenizers import training
from bertsmith.tokenizers.folder import TokenizerFolder, read_vocabulary, tokens_in_id_order
from bertsmith.tokenizers.pretokenization import Chunker
from bertsmith.tokenizers.special_tokens import FrameTemplate, SpecialTokens, register_special_tokens
from bertsmith.tokenizers.tokenizer import MAX_LENGTH, Tokenizer

CONTINUATION = "##"
LONGEST_WORD = 100  # differs from the paper: Google's code has 200, transformers and every folder of today 100
SPECIALS = SpecialTokens("[PAD]", "[UNK]", start="[CLS]", separator="[SEP]", end="[SEP]", mask="[MASK]")


# A run of ASCII letters, digits and Hangul syllables is a word, an ASCII sign is one too; what touches any other
# character stays together up to the next white space. Python's white space includes characters that BERT removes
# without splitting there: texts with such are irregular.
WORD = re.compile("[A-Za-z0-9가-힣]+|[!-~]")
UNIT = re.compile(r"[A-Za-z0-9가-힣]++(?![^\s!-~])|[!-/:-@\[-`{-~](?![^\s!-~가-힣])|\S+")
UNITS = Chunker(UNIT.findall, irregular=re.compile("[\x0b\x0c\x1c-\x1f\x85]"))


class Splitter:
    """One unit -> normalised words, as BertNormalizer and BertPreTokenizer make them."""

    chunker = UNITS

    def __init__(self, *, lowercase: bool, strip_accents: bool, chinese_spacing: bool) -> None:
        self.rules = {"lowercase": lowercase, "strip_accents": strip_accents, "chinese_spacing": chinese_spacing}
        self.normalizer = bert_normalizer(**self.rules)
        self.words = pre_tokenizers.BertPreTokenizer()

    def __call__(self, unit: str) -> Sequence[str]:
        if WORD.fullmatch(unit) and (unit.isascii() or not self.rules["strip_accents"]):
            return (unit.lower() if self.rules["lowercase"] else unit,)
        return [word for word, _ in self.words.pre_tokenize_str(self.normalizer.normalize_str(unit))]

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Splitter, **self.rules), ()


def bert_normalizer(*, lowercase: bool, strip_accents: bool, chinese_spacing: bool) -> normalizers.BertNormalizer:
    """BERT's normaliser: control characters go, white space is a space, and what the settings say."""
    return normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=chinese_spacing, strip_accents=strip_accents, lowercase=lowercase
    )


@dataclass(frozen=True)
class Config:
    """How a WordPiece vocabulary is learned."""

    lowercase: bool = True
    strip_accents: bool | None = None  # None: if lower-casing, unless there is Hangul, which would fall apart
    chinese_spacing: bool = True  # each CJK ideograph is a word of its own
    coverage: float = 0.9995  # share of all characters that the alphabet spells; the rest make words unknown
    min_count: int = 2  # how often two neighbouring pieces must be seen to become one

    def __post_init__(self) -> None:
        training.check_min_count(self.min_count)

    def word_splitter(self) -> Splitter:
        """For counting. Accents stay: whether they are stripped is decided on the whole table, by `learn`."""
        return Splitter(lowercase=self.lowercase, strip_accents=False, chinese_spacing=self.chinese_spacing)

    def train(self, counts: dict[str, int], *, vocab_size: int) -> WordPiece:
        """A tokenizer of at most `vocab_size` tokens from counted words; empties `counts`."""
        specials = SPECIALS.tokens()
        if vocab_size < len(specials) + 10:
            raise ConfigError(f"vocab_size={vocab_size} is too small: {len(specials)} are special tokens")
        strip = training.should_strip_accents(counts, lowercase=self.lowercase, asked=self.strip_accents)
        if strip:
            counts = self._stripped(counts)
        # Each character may stand first in a word or continue it: two thirds of the vocabulary at most.
        characters = training.choose_alphabet(counts, coverage=self.coverage, most=vocab_size // 3)
        training.drop_unspellable(counts, characters)
        continuing = {character for word in counts for character in word[1:]}
        symbols = [*specials, *characters, *(CONTINUATION + character for character in sorted(continuing))]
        trainer = trainers.WordPieceTrainer(
            vocab_size=vocab_size, min_frequency=self.min_count, special_tokens=symbols, show_progress=False
        )
        tokens = training.tokens_by_id(
            training.train_backend(models.WordPiece(unk_token=SPECIALS.unknown), trainer, counts)
        )
        return WordPiece.build(
            tokens, lowercase=self.lowercase, strip_accents=strip, chinese_spacing=self.chinese_spacing
        )

    def _stripped(self, counts: dict[str, int]) -> dict[str, int]:
        """The table as it would be had accents been stripped; words with Hangul go, they are unknown then."""
        split = Splitter(lowercase=self.lowercase, strip_accents=True, chinese_spacing=self.chinese_spacing)
        stripped: dict[str, int] = {}
        while counts:
            word, count = counts.popitem()
            if word.isascii() or not training.HANGUL.search(word):
                for part in split(word):
                    stripped[part] = stripped.get(part, 0) + count
        return stripped


class WordPiece(Tokenizer):
    """BERT's tokenizer."""

    kind = "wordpiece"
    transformers_classes = ("BertTokenizer", "ElectraTokenizer", "DistilBertTokenizer")
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
        tokens: Sequence[str],
        *,
        lowercase: bool = True,
        strip_accents: bool | None = None,
        chinese_spacing: bool = True,
        special_tokens: SpecialTokens = SPECIALS,
        max_length: int = MAX_LENGTH,
        added: Iterable[tuple[int, tokenizers.AddedToken]] = (),
    ) -> WordPiece:
        """From a vocabulary by id; strip_accents=None means: along with lower-casing."""
        ids = {token: number for number, token in enumerate(tokens)}
        model = models.WordPiece(ids, unk_token=special_tokens.unknown, max_input_chars_per_word=LONGEST_WORD)
        backend = tokenizers.Tokenizer(model)
        strip = lowercase if strip_accents is None else strip_accents
        backend.normalizer = bert_normalizer(lowercase=lowercase, strip_accents=strip, chinese_spacing=chinese_spacing)
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        backend.decoder = decoders.WordPiece(prefix=CONTINUATION)
        special_ids = register_special_tokens(backend, special_tokens, added)
        start, separator = str(special_tokens.start), str(special_tokens.separator)
        backend.post_processor = processors.TemplateProcessing(
            single=f"{start}:0 $A:0 {separator}:0",
            pair=f"{start}:0 $A:0 {separator}:0 $B:1 {separator}:1",
            special_tokens=[(token, special_ids[token]) for token in (start, separator)],
        )
        return cls(backend, special_tokens=special_tokens, max_length=max_length)

    @classmethod
    def from_vocabulary(
        cls,
        path: str | Path,
        *,
        lowercase: bool = True,
        strip_accents: bool | None = None,
        chinese_spacing: bool = True,
    ) -> WordPiece:
        """From a vocab.txt alone: one token a line, its id the number of the line, special tokens by name."""
        tokens = read_vocabulary(Path(path))
        missing = [token for token in SPECIALS.tokens() if token not in tokens]
        if missing:
            raise DataError(f"{path}: its {len(tokens)} tokens lack {', '.join(missing)}: is it a BERT vocabulary?")
        return cls.build(tokens, lowercase=lowercase, strip_accents=strip_accents, chinese_spacing=chinese_spacing)

    def is_continuation(self) -> NDArray[np.bool_]:
        """Pieces with `##` before them."""
        return np.array([token.startswith(CONTINUATION) for token in self.tokens()])

    @classmethod
    def from_folder(cls, contents: TokenizerFolder) -> WordPiece:
        return cls.build(
            contents.vocabulary() if contents.definition else read_vocabulary(contents.path / "vocab.txt"),
            **_rules(contents, named=contents.class_name in cls.transformers_classes),
            special_tokens=contents.special_tokens(cls.special_token_keys, SPECIALS),
            max_length=contents.max_length(MAX_LENGTH),
            added=contents.added(),
        )

    @classmethod
    def recognises(cls, contents: TokenizerFolder) -> bool:
        if contents.definition:
            return contents.model.get("type") == "WordPiece"
        return not contents.class_name and contents.has("vocab.txt")

    def rules(self) -> dict[str, Any]:
        normalizer = self.backend.normalizer
        return {
            "lowercase": normalizer.lowercase,
            "strip_accents": normalizer.strip_accents,
            "chinese_spacing": normalizer.handle_chinese_chars,
            "continuation": CONTINUATION,
            "longest_word": LONGEST_WORD,
        }

    def transformers_config(self) -> dict[str, Any]:
        rules = self.rules()
        return {
            "tokenizer_class": "BertTokenizer",
            "do_lower_case": rules["lowercase"],
            # Never null: transformers 5 builds its normalizer from these and would take Hangul apart.
            "strip_accents": rules["strip_accents"],
            "tokenize_chinese_chars": rules["chinese_spacing"],
        }

    def vocabulary_files(self) -> dict[str, bytes]:
        own = tokens_in_id_order(self.backend.get_vocab(with_added_tokens=False), "the vocabulary")
        return {"vocab.txt": "".join(f"{token}\n" for token in own).encode()}

    @cached_property
    def _pieces(self) -> dict[str, int]:
        return self.backend.get_vocab(with_added_tokens=False)

    def _slow_ids(self, texts: list[str]) -> list[list[int]]:
        """Plain words are spelled here: handing single words to the backend takes longer than spelling them."""
        if self._ordinary_added:
            return super()._slow_ids(texts)
        rules = self.rules()
        fold = str.lower if rules["lowercase"] else str
        plain = [WORD.fullmatch(text) and (text.isascii() or not rules["strip_accents"]) for text in texts]
        others = iter(super()._slow_ids([text for text, own in zip(texts, plain, strict=True) if not own]))
        return [self._spell(fold(text)) if own else next(others) for text, own in zip(texts, plain, strict=True)]

    def _spell(self, word: str) -> list[int]:
        """The ids of one normalised word: the longest piece that fits, then the longest that goes on from there."""
        pieces, found, begin = self._pieces, list[int](), 0
        while begin < len(word) <= LONGEST_WORD:
            head = CONTINUATION if begin else ""
            for end in range(len(word), begin, -1):
                number = pieces.get(head + word[begin:end])
                if number is not None:
                    found.append(number)
                    begin = end
                    break
            else:
                return [self.unknown_id]
        return found or [self.unknown_id]


def _rules(contents: TokenizerFolder, *, named: bool) -> dict[str, Any]:
    """The rules of a folder: BertTokenizer's settings where it is `named`, else those in tokenizer.json."""
    written = contents.part("normalizer")
    if not named and contents.definition:
        _expect_bert(contents)
    if written.get("type") != "BertNormalizer":
        written = {}
    stated = contents.config if named else {}
    return {
        "lowercase": stated.get("do_lower_case", written.get("lowercase", True)),
        "strip_accents": stated.get("strip_accents", written.get("strip_accents")),
        "chinese_spacing": stated.get("tokenize_chinese_chars", written.get("handle_chinese_chars", True)),
    }


def _expect_bert(contents: TokenizerFolder) -> None:
    found = {
        "normalizer": contents.part("normalizer").get("type"),
        "pre_tokenizer": contents.part("pre_tokenizer").get("type"),
        "continuing_subword_prefix": contents.model.get("continuing_subword_prefix"),
        "max_input_chars_per_word": contents.model.get("max_input_chars_per_word"),
    }
    wanted = ("BertNormalizer", "BertPreTokenizer", CONTINUATION, LONGEST_WORD)
    for (name, value), expected in zip(found.items(), wanted, strict=True):
        if value != expected:
            raise DataError(f"{contents.path}/tokenizer.json: {name} is {value}; a wordpiece tokenizer has {expected}")
