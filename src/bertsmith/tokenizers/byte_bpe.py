"""Byte-level byte-pair encoding, RoBERTa's and GPT-2's tokenizer: no text is unknown.

GPT-2's pattern splits a text into words; white space belongs to the word that follows. Each UTF-8 byte becomes one
visible character (a space as `Ġ`), and merges combine these.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Unpack

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from bertsmith.errors import ConfigError, DataError
from bertsmith.tokenizers import training
from bertsmith.tokenizers.folder import Merges, TokenizerFolder, backend_merges
from bertsmith.tokenizers.pretokenization import Chunker
from bertsmith.tokenizers.special_tokens import CLS_KEYS, FrameTemplate, SpecialTokens
from bertsmith.tokenizers.tokenizer import BuildOptions, MergesTokenizer

SPECIALS = SpecialTokens("<pad>", "<unk>", start="<s>", separator="</s>", end="</s>", mask="<mask>")
FIRST = ["<s>", "<pad>", "</s>", "<unk>"]  # ids 0 to 3, as in RoBERTa; <mask> is the last id
BYTE_LEVEL = pre_tokenizers.ByteLevel(add_prefix_space=False)
BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
WHITE_SPACE = ("Ġ", "ĉ", "Ċ", "ċ", "Č", "č")  # space, tab and the line ends, as visible bytes

PLAIN = re.compile(" ?[!-~]+")
# GPT-2's pattern for words of ASCII and Hangul syllables; a word between white space with any other character is one
# chunk. Python's white space includes characters that the pattern's does not: texts with these are irregular.
CHUNK = re.compile(
    r"\s*+[!-~가-힣]*+[^\s!-~가-힣]\S*"
    r"|'(?:[stmd]|re|ve|ll)| ?[A-Za-z가-힣]+| ?[0-9]+| ?[!-/:-@\[-`{-~]+|\s+(?!\S)|\s+"
)
IRREGULAR = re.compile("[\x1c-\x1f]")
CHUNKER = Chunker(CHUNK.findall, irregular=IRREGULAR)
# With a prefix space, every chunk but the first must begin with white space.
PREFIXED_CHUNKER = Chunker(re.compile(r"\s*\S+|\s+").findall, irregular=IRREGULAR)


class Splitter:
    """One chunk -> words in visible bytes, as from ByteLevel."""

    chunker = CHUNKER

    def __call__(self, chunk: str) -> Sequence[str]:
        if PLAIN.fullmatch(chunk):
            return (chunk.replace(" ", "Ġ"),)
        return [word for word, _ in BYTE_LEVEL.pre_tokenize_str(chunk)]


@dataclass(frozen=True)
class Config:
    """Training of a byte-level vocabulary."""

    min_count: int = 2  # minimum count of a pair of symbols that is merged

    def __post_init__(self) -> None:
        training.check_min_count(self.min_count)

    def word_splitter(self) -> Splitter:
        return Splitter()

    def train(self, counts: dict[str, int], *, vocab_size: int) -> ByteBPE:
        """A tokenizer of at most `vocab_size` tokens from word counts; empties `counts`."""
        least = len(FIRST) + len(BYTES) + 1
        if vocab_size < least:
            raise ConfigError(
                f"vocab_size={vocab_size}: expected at least {least}, for the special tokens and the 256 bytes"
            )
        if not counts:
            raise DataError("the corpus is empty: there are no words to train a vocabulary on")
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size - 1,
            min_frequency=self.min_count,
            special_tokens=FIRST,
            initial_alphabet=BYTES,
            show_progress=False,
        )
        trained = training.train_backend(models.BPE(), trainer, counts)
        tokens = [*training.tokens_by_id(trained), "<mask>"]
        # As in RoBERTa, a parsed <mask> includes the space before it.
        mask = tokenizers.AddedToken("<mask>", lstrip=True, normalized=False, special=True)
        return ByteBPE.build(tokens, backend_merges(trained), added=[(len(tokens) - 1, mask)])


class ByteBPE(MergesTokenizer):
    """RoBERTa's tokenizer."""

    kind = "byte_bpe"
    transformers_classes = ("RobertaTokenizer", "LongformerTokenizer")
    default_special_tokens = SPECIALS
    special_token_keys: ClassVar[Mapping[str, str]] = CLS_KEYS | {"end": "eos_token"}
    template = FrameTemplate(pair=("start", "a", "separator", "separator", "b", "end"))
    default_chunker = CHUNKER

    @classmethod
    def build(
        cls,
        tokens: Sequence[str],
        merges: Merges,
        *,
        add_prefix_space: bool = False,
        **options: Unpack[BuildOptions],
    ) -> ByteBPE:
        """From tokens by id and merges in order of application."""
        ids = {token: number for number, token in enumerate(tokens)}
        backend = tokenizers.Tokenizer(models.BPE(ids, merges))
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
        backend.decoder = decoders.ByteLevel()
        tokenizer = cls.from_backend(backend, **options)
        end, start = (
            (tokenizer.id_to_token(number), number) for number in (tokenizer.separator_id, tokenizer.start_id)
        )
        backend.post_processor = processors.RobertaProcessing(
            end, start, trim_offsets=True, add_prefix_space=add_prefix_space
        )
        return tokenizer

    def is_continuation(self) -> NDArray[np.bool_]:
        """Tokens without white space before them: words are separated by white space (fairseq: whole-word masking)."""
        continues = np.array([not token.startswith(WHITE_SPACE) for token in self.tokens()])
        continues[list(self.special_ids)] = False
        return continues

    @classmethod
    def from_folder(cls, contents: TokenizerFolder) -> ByteBPE:
        tokens, merges = contents.merges()
        named = contents.class_name in cls.transformers_classes  # whose default is False whatever tokenizer.json says
        default = not named and contents.section("pre_tokenizer").get("add_prefix_space") is True
        prefix = bool(contents.setting("add_prefix_space", default=default))
        return cls.build(tokens, merges, add_prefix_space=prefix, **cls.folder_options(contents))

    @classmethod
    def recognises(cls, contents: TokenizerFolder) -> bool:
        if contents.definition:
            return contents.model.get("type") == "BPE" and contents.section("pre_tokenizer").get("type") == "ByteLevel"
        return not contents.class_name and contents.has("vocab.json") and contents.has("merges.txt")

    def rules(self) -> dict[str, Any]:
        return {"add_prefix_space": self.backend.pre_tokenizer.add_prefix_space, "merges": self.merges}

    def transformers_config(self) -> dict[str, Any]:
        return {
            "add_prefix_space": self.backend.pre_tokenizer.add_prefix_space,
            "trim_offsets": True,
            "bos_token": self.special_tokens.start,
        }

    def chunker(self) -> Chunker:
        chunker = super().chunker()
        return PREFIXED_CHUNKER if chunker is CHUNKER and self.backend.pre_tokenizer.add_prefix_space else chunker
