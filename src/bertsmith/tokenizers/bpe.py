"""Byte-pair encoding of characters, GPT-1's tokenizer (gpt1: text_utils.py): lower case, `</w>` ends a word.

Words are split by one of three rules:
- `spacy`: GPT-1's own, ftfy and spaCy's English tokenizer. A line end is a token.
- `pattern`: without these packages; GPT-1's clean-up and one pattern for spaCy's commonest rules. A line end is white
  space and broken encodings are not repaired.
- `bert`: BERT's, as in OpenAIGPTTokenizer of transformers 5. Strips accents.

# differs from the paper: long pairs are truncated by the common rule (the longer text first) instead of each text to
# half the positions less two.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Unpack, get_args

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers

from bertsmith import types
from bertsmith.errors import BertsmithError, ConfigError, DataError
from bertsmith.tokenizers import folder, training
from bertsmith.tokenizers.folder import Merges, TokenizerFolder, backend_merges
from bertsmith.tokenizers.gpt_words import NEWLINE, REPLACED, gpt_chunker, gpt_words
from bertsmith.tokenizers.pretokenization import BERT_PRETOKENIZER, WHITESPACE_CHUNKER, WHOLE_TEXT, Chunker, Token
from bertsmith.tokenizers.special_tokens import BOS_KEYS, SpecialTokens
from bertsmith.tokenizers.tokenizer import BuildOptions, MergesTokenizer
from bertsmith.tokenizers.wordpiece import CHUNKER as BERT_CHUNKER

WordSplitter = Literal["pattern", "spacy", "bert"]

END = "</w>"
# <pad> is an addition: GPT-1 pads with id 0, which is <unk>, but batches must distinguish padding from unknown words.
SPECIALS = SpecialTokens("<pad>", "<unk>", start="_start_", separator="_delimiter_", end="_classify_")
LAST = ["_start_", "_delimiter_", "_classify_", "<pad>"]  # the last ids; <unk> is 0

QUOTES = {"[\u02bc\u2018-\u201b]": "'", "[\u201c-\u201f]": '"'}  # as ftfy straightens them
# A full stop belongs to single letters and to these words.
ABBREVIATIONS = r"adm|bros|co|corp|dr|gen|gov|inc|jr|ltd|messrs|mr|mrs|ms|prof|rep|rev|sen|st|vs|\p{L}"
# Signs are words, and so are runs of some, contractions such as n't and 's, and full stops and quotes outside of words.
SIGNS = (
    r"""-+|~+|/+|\\+|\|+|\.{2,}|\bcan(?=not\b)|n't(?!\p{L})|'(?:s|re|ve|ll|d|m)(?!\p{L})"""
    rf"""|(?<!\b(?:{ABBREVIATIONS}))\.(?![\p{{L}}\p{{N}}])"""
    r"""|(?<!\p{L})'|'(?!\p{L})|[^\s\p{L}\p{N}\p{M}.']"""
)

NORMALIZER = normalizers.Sequence(
    [
        *(normalizers.Replace(Regex(pattern), sign) for pattern, sign in QUOTES.items()),
        *itertools.starmap(normalizers.Replace, REPLACED.items()),
        normalizers.Lowercase(),
    ]
)
WORDS = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split(Regex(SIGNS), "isolated")])
BERT_NORMALIZER = normalizers.BertNormalizer(lowercase=True)


@dataclass(frozen=True)
class Splitter:
    """One chunk -> normalised words and signs."""

    rule: WordSplitter = "pattern"

    @property
    def chunker(self) -> Chunker:
        if self.rule == "spacy":
            return gpt_chunker()
        return BERT_CHUNKER if self.rule == "bert" else WHITESPACE_CHUNKER

    def __call__(self, chunk: str) -> Sequence[str]:
        if self.rule == "spacy":
            return [] if chunk.isspace() else [word for word in gpt_words()(chunk) if word != NEWLINE]
        if chunk.isascii() and chunk.isalnum() and chunk.lower() != "cannot":
            return (chunk.lower(),)
        normalizer, words = (BERT_NORMALIZER, BERT_PRETOKENIZER) if self.rule == "bert" else (NORMALIZER, WORDS)
        return [word for word, _ in words.pre_tokenize_str(normalizer.normalize_str(chunk))]


@dataclass(frozen=True)
class Config:
    """Training of a vocabulary."""

    coverage: float = 0.9995  # share of all characters that the alphabet contains; the rest are unknown
    min_count: int = 2  # minimum count of a pair of symbols that is merged
    splitter: WordSplitter = "pattern"  # "spacy": as GPT-1, needs bertsmith[gpt]; "bert": as transformers 5

    def __post_init__(self) -> None:
        training.check_min_count(self.min_count)
        if self.splitter not in get_args(WordSplitter):
            raise ConfigError(f"splitter={self.splitter!r} must be one of {', '.join(get_args(WordSplitter))}")

    def word_splitter(self) -> Splitter:
        if self.splitter == "spacy":
            gpt_words()  # an error at once if spaCy is not installed
        return Splitter(self.splitter)

    def train(self, counts: dict[str, int], *, vocab_size: int) -> BPE:
        """A tokenizer of at most `vocab_size` tokens from word counts; empties `counts`."""
        if self.splitter == "bert" and not training.should_strip_accents(counts, lowercase=True, requested=None):
            raise ConfigError(
                "splitter=bert decomposes Hangul into jamo, and the corpus has Hangul: use another splitter"
            )
        always = training.ascii_alphabet(lowercase=True)
        first = ["<unk>", NEWLINE + END] if self.splitter == "spacy" else ["<unk>"]
        left = training.remaining_tokens(vocab_size, len(LAST) + len(first) + 2 * len(always))
        # Each other character may be inside a word or end it: two thirds of the rest at most.
        characters = training.choose_alphabet(counts, coverage=self.coverage, always=always, most=left // 3)
        training.drop_unspellable(counts, characters)
        ends = sorted({*always, *(word[-1] for word in counts)})
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size - len(LAST),
            min_frequency=self.min_count,
            special_tokens=[*first, *characters, *(character + END for character in ends)],
            end_of_word_suffix=END,
            show_progress=False,
        )
        trained = training.train_backend(models.BPE(), trainer, counts)
        return BPE.build([*training.tokens_by_id(trained), *LAST], backend_merges(trained), splitter=self.splitter)


class BPE(MergesTokenizer):
    """GPT-1's tokenizer."""

    kind = "bpe"
    transformers_classes = ("OpenAIGPTTokenizer",)
    default_special_tokens = SPECIALS
    special_token_keys = BOS_KEYS

    @classmethod
    def build(
        cls, tokens: Sequence[str], merges: Merges, *, splitter: WordSplitter, **options: Unpack[BuildOptions]
    ) -> BPE:
        """From tokens by id and merges in order of application."""
        ids = {token: number for number, token in enumerate(tokens)}
        unknown = options.get("special_tokens", SPECIALS).unknown
        model = models.BPE(ids, merges, unk_token=unknown, end_of_word_suffix=END, fuse_unk=False)
        backend = tokenizers.Tokenizer(model)
        if splitter != "spacy":
            backend.normalizer = BERT_NORMALIZER if splitter == "bert" else NORMALIZER
            backend.pre_tokenizer = BERT_PRETOKENIZER if splitter == "bert" else WORDS
        backend.decoder = decoders.BPEDecoder(suffix=END)
        return cls.from_backend(backend, **options)

    @property
    def splitter(self) -> WordSplitter:
        """How texts are split into words; the backend has no rules of its own for `spacy`."""
        normalizer = self.backend.normalizer
        if normalizer is None:
            return "spacy"
        return "bert" if isinstance(normalizer, normalizers.BertNormalizer) else "pattern"

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
        return cls.build(tokens, merges, splitter=_splitter(contents), **options)

    @classmethod
    def recognises(cls, contents: TokenizerFolder) -> bool:
        return contents.model.get("type") == "BPE" and contents.model.get("end_of_word_suffix") == END

    def encode(self, text: str, *, parse_special_tokens: bool = False) -> types.Encoded:
        if self.splitter != "spacy":
            return super().encode(text, parse_special_tokens=parse_special_tokens)
        return self.encode_in_python(self._tokenize, text, parse_special_tokens=parse_special_tokens)

    def encode_batch(self, texts: Sequence[str]) -> list[types.Encoded]:
        return super().encode_batch(texts) if self.splitter != "spacy" else [self.encode(text) for text in texts]

    def _tokenize(self, text: str) -> Iterator[Token]:
        model = self.backend.model
        for number, (word, begins, ends) in enumerate(gpt_words().aligned(text)):
            end = 0
            for token in model.tokenize(word):
                # An unknown token is one character.
                begin, end = end, end + (1 if token.id == self.unknown_id else len(token.value.removesuffix(END)))
                yield Token(token.id, begins[begin], ends[end - 1], number)

    def _encode_uncached(self, texts: list[str]) -> list[list[int]]:
        if self.splitter != "spacy":
            return super()._encode_uncached(texts)
        model, split = self.backend.model, gpt_words()
        # A chunk of white space is a line end between words.
        words = ([NEWLINE] if text.isspace() else split(text) for text in texts)
        return [[token.id for word in one for token in model.tokenize(word)] for one in words]

    def chunker(self) -> Chunker:
        return Splitter(self.splitter).chunker if not self._ordinary_added else WHOLE_TEXT

    def rules(self) -> dict[str, Any]:
        signs = SIGNS if self.splitter == "pattern" else None
        return {"splitter": self.splitter, "replaced": REPLACED, "signs": signs, "end": END, "merges": self.merges}

    def transformers_config(self) -> dict[str, Any]:
        # OpenAIGPTTokenizer of transformers 5 has the rules of `bert`; the other class runs tokenizer.json as it is.
        name = "PreTrainedTokenizerFast" if self.splitter == "pattern" else "OpenAIGPTTokenizer"
        settings: dict[str, Any] = {"tokenizer_class": name, "splitter": self.splitter}
        if self.splitter == "spacy":  # without tokenizer.json, transformers would number the special tokens by role
            flags = ("content", "single_word", "lstrip", "rstrip", "normalized", "special")
            added = self.backend.get_added_tokens_decoder().items()
            settings["added_tokens_decoder"] = {
                str(number): {flag: getattr(token, flag) for flag in flags} for number, token in added
            }
        return settings

    def files(self) -> dict[str, bytes]:
        files = super().files()
        if self.splitter == "spacy":
            del files[folder.DEFINITION]
        return files


def _splitter(contents: TokenizerFolder) -> WordSplitter:
    """The word splitter of a folder; without a statement that of tokenizer.json, or GPT-1's for OpenAI's files."""
    named = contents.config.get("splitter")
    if named is None and contents.definition:
        return "bert" if contents.section("normalizer").get("type") == "BertNormalizer" else "pattern"
    if named in ("pattern", "bert"):
        return "bert" if named == "bert" else "pattern"
    if named not in ("spacy", None):
        raise DataError(f"{folder.CONFIG} has splitter={named!r}, expected {', '.join(get_args(WordSplitter))}")
    try:
        gpt_words()
    except BertsmithError as error:
        other = f'; or set "splitter": "pattern" in {folder.CONFIG}, with slightly different ids' if not named else ""
        raise DataError(f"{error}{other}") from error
    return "spacy"
