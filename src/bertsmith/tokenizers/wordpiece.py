"""WordPiece, BERT's tokenizer (P-BERT 3, bert: tokenization.py): the rules of transformers' BertTokenizerFast exactly.

A word is split greedily into the longest pieces of the vocabulary, with `##` before continuations. A word that cannot
be split, or has more than 100 characters, is one unknown token.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import decoders, models, normalizers, trainers

from bertsmith.errors import DataError
from bertsmith.tokenizers import training
from bertsmith.tokenizers.folder import TokenizerFolder, read_vocabulary, tokens_in_id_order, vocabulary_bytes
from bertsmith.tokenizers.pretokenization import BERT_PRETOKENIZER, Chunker
from bertsmith.tokenizers.special_tokens import CLS_KEYS, FrameTemplate, SpecialTokens
from bertsmith.tokenizers.tokenizer import BuildOptions, Tokenizer

CONTINUATION = "##"
MAX_WORD_LENGTH = 100  # differs from the paper: Google's code has 200; transformers and all published folders have 100
SPECIALS = SpecialTokens("[PAD]", "[UNK]", start="[CLS]", separator="[SEP]", end="[SEP]", mask="[MASK]")
# Rule -> its key in tokenizer_config.json and in the normalizer of tokenizer.json; BertTokenizer's defaults.
KEYS = {"lowercase": "do_lower_case", "strip_accents": "strip_accents", "chinese_spacing": "tokenize_chinese_chars"}
NORMALIZER_KEYS = {**{name: name for name in KEYS}, "chinese_spacing": "handle_chinese_chars"}
RULES: dict[str, Any] = {"lowercase": True, "strip_accents": None, "chinese_spacing": True}
HANGUL = re.compile("[가-힣]")

# A run of ASCII letters, digits and Hangul syllables is a word, and so is an ASCII sign; a run with any other character
# extends to the next white space. Python's white space includes characters that BERT removes without splitting: texts
# with these are irregular.
WORD = re.compile("[A-Za-z0-9가-힣]+|[!-~]")
CHUNK = re.compile(r"[A-Za-z0-9가-힣]++(?![^\s!-~])|[!-/:-@\[-`{-~](?![^\s!-~가-힣])|\S+")
CHUNKER = Chunker(CHUNK.findall, irregular=re.compile("[\x0b\x0c\x1c-\x1f\x85]"))


class Splitter:
    """One chunk -> normalised words, as from BertNormalizer and BertPreTokenizer (bert: BasicTokenizer)."""

    chunker = CHUNKER

    def __init__(self, *, lowercase: bool, strip_accents: bool, chinese_spacing: bool) -> None:
        self.rules = {"lowercase": lowercase, "strip_accents": strip_accents, "chinese_spacing": chinese_spacing}
        self.normalizer = bert_normalizer(**self.rules)

    def __call__(self, chunk: str) -> Sequence[str]:
        if WORD.fullmatch(chunk) and (chunk.isascii() or not self.rules["strip_accents"]):
            return (chunk.lower() if self.rules["lowercase"] else chunk,)
        return [word for word, _ in BERT_PRETOKENIZER.pre_tokenize_str(self.normalizer.normalize_str(chunk))]


def bert_normalizer(*, lowercase: bool, strip_accents: bool, chinese_spacing: bool) -> normalizers.BertNormalizer:
    """BERT's normaliser, which also removes control characters and turns white space into spaces."""
    return normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=chinese_spacing, strip_accents=strip_accents, lowercase=lowercase
    )


@dataclass(frozen=True)
class Config:
    """Training of a WordPiece vocabulary."""

    lowercase: bool = True
    strip_accents: bool | None = None  # None: if lower-casing, unless the corpus has Hangul, which would be decomposed
    chinese_spacing: bool = True  # each CJK ideograph is a word of its own
    coverage: float = 0.9995  # share of all characters that the alphabet contains; words with others are unknown
    min_count: int = 2  # minimum count of a pair of pieces that is merged

    def __post_init__(self) -> None:
        training.check_min_count(self.min_count)

    def word_splitter(self) -> Splitter:
        """Keeps accents: `train` decides on all counts whether they are stripped."""
        return self._splitter(strip_accents=False)

    def train(self, counts: dict[str, int], *, vocab_size: int) -> WordPiece:
        """A tokenizer of at most `vocab_size` tokens from word counts; empties `counts`."""
        specials, always = SPECIALS.tokens(), training.ascii_alphabet(lowercase=self.lowercase)
        inside = set(filter(str.isalnum, always))  # signs are words of their own
        left = training.remaining_tokens(vocab_size, len(specials) + len(always) + len(inside))
        strip = training.should_strip_accents(counts, lowercase=self.lowercase, requested=self.strip_accents)
        if strip:
            counts = training.strip_accents(counts, self._splitter(strip_accents=True))
        # Each other character may begin a word or continue it: two thirds of the rest at most.
        characters = training.choose_alphabet(counts, coverage=self.coverage, always=always, most=left // 3)
        training.drop_unspellable(counts, characters)
        continuing = inside | {character for word in counts for character in word[1:]}
        symbols = [*specials, *characters, *(CONTINUATION + character for character in sorted(continuing))]
        trainer = trainers.WordPieceTrainer(
            vocab_size=vocab_size, min_frequency=self.min_count, special_tokens=symbols, show_progress=False
        )
        trained = training.train_backend(models.WordPiece(unk_token=SPECIALS.unknown), trainer, counts)
        tokens, spacing = training.tokens_by_id(trained), self.chinese_spacing
        return WordPiece.build(tokens, lowercase=self.lowercase, strip_accents=strip, chinese_spacing=spacing)

    def _splitter(self, *, strip_accents: bool) -> Splitter:
        return Splitter(lowercase=self.lowercase, strip_accents=strip_accents, chinese_spacing=self.chinese_spacing)


class WordPiece(Tokenizer):
    """BERT's tokenizer."""

    kind = "wordpiece"
    transformers_classes = ("BertTokenizer", "ElectraTokenizer", "DistilBertTokenizer")
    default_special_tokens = SPECIALS
    special_token_keys = CLS_KEYS
    template = FrameTemplate(pair_segments=(0, 0, 0, 1, 1))
    default_chunker = CHUNKER

    @classmethod
    def build(
        cls,
        tokens: Sequence[str],
        *,
        lowercase: bool = True,
        strip_accents: bool | None = None,
        chinese_spacing: bool = True,
        **options: Unpack[BuildOptions],
    ) -> WordPiece:
        """From tokens by id; strip_accents=None follows `lowercase`."""
        ids = {token: number for number, token in enumerate(tokens)}
        unknown = options.get("special_tokens", SPECIALS).unknown
        model = models.WordPiece(ids, unk_token=unknown, max_input_chars_per_word=MAX_WORD_LENGTH)
        backend = tokenizers.Tokenizer(model)
        strip = lowercase if strip_accents is None else strip_accents
        backend.normalizer = bert_normalizer(lowercase=lowercase, strip_accents=strip, chinese_spacing=chinese_spacing)
        backend.pre_tokenizer = BERT_PRETOKENIZER
        backend.decoder = decoders.WordPiece(prefix=CONTINUATION)
        return cls.from_backend(backend, **options)

    @classmethod
    def from_vocabulary(
        cls,
        path: str | Path,
        *,
        lowercase: bool = True,
        strip_accents: bool | None = None,
        chinese_spacing: bool = True,
    ) -> WordPiece:
        """From a vocab.txt with one token per line, in the order of their ids, and BERT's special tokens."""
        tokens = read_vocabulary(Path(path))
        missing = [token for token in SPECIALS.tokens() if token not in tokens]
        if missing:
            raise DataError(
                f"{path}: its {len(tokens)} tokens do not include {', '.join(missing)}: is it a BERT vocabulary?"
            )
        return cls.build(tokens, lowercase=lowercase, strip_accents=strip_accents, chinese_spacing=chinese_spacing)

    def is_continuation(self) -> NDArray[np.bool_]:
        """Pieces with the prefix `##`."""
        return np.array([token.startswith(CONTINUATION) for token in self.tokens()])

    @classmethod
    def from_folder(cls, contents: TokenizerFolder) -> WordPiece:
        tokens = contents.vocabulary() if contents.definition else read_vocabulary(contents.file("vocab.txt"))
        rules = _rules(contents, tokens, named=contents.class_name in cls.transformers_classes)
        return cls.build(tokens, **rules, **cls.folder_options(contents))

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
            "longest_word": MAX_WORD_LENGTH,
        }

    def transformers_config(self) -> dict[str, Any]:
        rules = self.rules()
        return {
            "do_lower_case": rules["lowercase"],
            # Never null: transformers 5 builds its normalizer from these and would decompose Hangul.
            "strip_accents": rules["strip_accents"],
            "tokenize_chinese_chars": rules["chinese_spacing"],
        }

    def vocabulary_files(self) -> dict[str, bytes]:
        tokens = tokens_in_id_order(self.backend.get_vocab(with_added_tokens=False), "the vocabulary")
        return {"vocab.txt": vocabulary_bytes(tokens)}

    @cached_property
    def _pieces(self) -> dict[str, int]:
        return self.backend.get_vocab(with_added_tokens=False)

    def _encode_uncached(self, texts: list[str]) -> list[list[int]]:
        """Splits plain words in Python: passing single words to the backend takes longer than splitting them."""
        if self._ordinary_added:
            return super()._encode_uncached(texts)
        rules = self.rules()
        fold = str.lower if rules["lowercase"] else str
        plain = [WORD.fullmatch(text) and (text.isascii() or not rules["strip_accents"]) for text in texts]
        others = iter(super()._encode_uncached([text for text, own in zip(texts, plain, strict=True) if not own]))
        return [self._split(fold(text)) if own else next(others) for text, own in zip(texts, plain, strict=True)]

    def _split(self, word: str) -> list[int]:
        """The ids of one normalised word: greedy longest match from left to right."""
        pieces, ids, begin = self._pieces, list[int](), 0
        while begin < len(word) <= MAX_WORD_LENGTH:
            prefix = CONTINUATION if begin else ""
            for end in range(len(word), begin, -1):
                number = pieces.get(prefix + word[begin:end])
                if number is not None:
                    ids.append(number)
                    begin = end
                    break
            else:
                return [self.unknown_id]
        return ids or [self.unknown_id]


def has_capitals(tokens: Iterable[str]) -> bool:
    """Whether ordinary tokens have capital letters: `[CLS]` and its like are not ordinary."""
    return any(token != token.lower() for token in tokens if not (token.startswith("[") and token.endswith("]")))


def infer_rules(tokens: Sequence[str], lowercase: bool | None = None) -> tuple[dict[str, Any], str]:
    """The rules of a vocabulary whose folder declares none, and a note; `lowercase` as requested, if not None."""
    capitals, hangul = has_capitals(tokens), any(map(HANGUL.search, tokens))
    rules: dict[str, Any] = {"lowercase": not capitals if lowercase is None else lowercase}
    reason = f"the vocabulary has {'' if capitals else 'no '}capital letters" if lowercase is None else "requested"
    note = f"lowercase={str(rules['lowercase']).lower()}, as {reason}"
    if hangul and rules["lowercase"]:
        rules["strip_accents"] = False
        note += "; strip_accents=false, as it has composed Hangul syllables"
    return rules, note


def _rules(contents: TokenizerFolder, tokens: Sequence[str], *, named: bool) -> dict[str, Any]:
    """The rules of a folder: the settings of tokenizer_config.json, else BertTokenizer's defaults if it is `named`.

    A folder that does not name it has the rules of tokenizer.json, and one with vocab.txt alone those of its tokens.
    """
    if not contents.config and not contents.definition:
        inferred, note = infer_rules(tokens, contents.lowercase)
        contents.notes.append(note)
        return inferred
    normalizer = contents.section("normalizer")
    stored = {name: normalizer[key] for name, key in NORMALIZER_KEYS.items() if key in normalizer}
    rules = RULES | ({} if named else stored)
    declared: dict[str, Any] = {}
    if named or not contents.class_name:  # other classes run tokenizer.json as it is
        keys = {name: key for name, key in KEYS.items() if key in contents.config}
        declared = {name: contents.setting(key, RULES[name]) for name, key in keys.items()}
    rules |= declared
    if contents.lowercase is not None:
        if declared.get("lowercase", contents.lowercase) != contents.lowercase:
            contents.notes.append(
                f"lowercase={str(contents.lowercase).lower()} as requested, although tokenizer_config.json declares "
                f"do_lower_case={str(declared['lowercase']).lower()}"
            )
        rules["lowercase"] = contents.lowercase
    strip = rules["lowercase"] if rules["strip_accents"] is None else rules["strip_accents"]
    _note_rules(contents, tokens, rules | {"strip_accents": strip}, declared)
    return rules


def _note_rules(
    contents: TokenizerFolder, tokens: Sequence[str], rules: dict[str, Any], declared: dict[str, Any]
) -> None:
    """Notes of what is lost without a declared setting, and of settings that have no effect."""
    advice = "as by transformers, although the vocabulary has"
    if "lowercase" not in declared and contents.lowercase is None and rules["lowercase"] and has_capitals(tokens):
        contents.notes.append(f"texts are lower-cased, {advice} capital letters: `bertsmith import --cased` keeps them")
    if declared.get("strip_accents") is None and rules["strip_accents"] and any(map(HANGUL.search, tokens)):
        contents.notes.append(
            f"accents are stripped, {advice} composed Hangul syllables, which become unknown: "
            "declare strip_accents=false in tokenizer_config.json if the model was trained with them"
        )
    if contents.config.get("do_basic_tokenize") is False:
        contents.notes.append("do_basic_tokenize=false is ignored, as by transformers' fast tokenizers")
    if contents.config.get("never_split"):
        contents.notes.append("never_split is ignored, as by transformers' fast tokenizers")
