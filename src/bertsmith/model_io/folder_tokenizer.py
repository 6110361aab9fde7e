"""The tokenizer of a model folder: untrusted files, checked before they are read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from bertsmith.encoders.encoder import Encoder
from bertsmith.errors import BertsmithError, DataError
from bertsmith.model_io.untrusted_files import MEBIBYTE, UntrustedFile, exists, parse_object, shown
from bertsmith.tokenizers import tokenizer as tokenizers
from bertsmith.tokenizers.folder import MODEL_CONFIG, OWN_FILES, TARGET
from bertsmith.tokenizers.special_tokens import stream_frame
from bertsmith.tokenizers.spelling import MAX_CHARACTERS, Characters
from bertsmith.tokenizers.spelling import spell_vocabulary as characters_of_tokens
from bertsmith.tokenizers.tokenizer import Tokenizer
from bertsmith.types import Vocabulary

JSON_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json")
OTHER_FILES = ("vocab.txt", "merges.txt", "spiece.model", "sentencepiece.bpe.model")
TARGET_FILES = tuple(f"{TARGET}{name}" for name in OWN_FILES)
MAX_BYTES = 64 * MEBIBYTE
MAX_VALUES = 4_000_000  # a vocabulary of 250,000 with its merges has about 1,000,000


def read_tokenizer(folder: Path, rows: int, *, lowercase: bool | None = None) -> Tokenizer:
    """The tokenizer of an untrusted folder, for a token table of `rows`; `lowercase`: not as the folder declares."""
    present = [name for name in (*JSON_FILES, *OTHER_FILES) if exists(folder, name)]
    if not present:
        expected = f"expected {JSON_FILES[0]} or {OTHER_FILES[0]}"
        raise DataError(f"{folder} has no tokenizer: {expected}, or name its folder with --tokenizer DIR")
    others = [name for name in (MODEL_CONFIG, *TARGET_FILES) if exists(folder, name)]
    for name in [*present, *others]:
        with UntrustedFile(folder, name, max_bytes=MAX_BYTES) as file:
            data = file.read(0, file.size)
            definition = parse_object(data, file.path, max_values=MAX_VALUES) if name.endswith(".json") else {}
        if name == "tokenizer.json" or (name == "vocab.txt" and "tokenizer.json" not in present):
            check_fits(_tokens(definition, data), rows, folder)  # before building, which is slow
    try:
        return tokenizers.load(folder, lowercase=lowercase)
    except BertsmithError:
        raise
    except Exception as error:  # the tokenizers library has no exception class of its own
        reason = f"{type(error).__name__}: {shown(str(error), 200)}"
        raise DataError(f"{folder}: its tokenizer ({', '.join(present)}) cannot be read: {reason}") from error


def check_fits(tokens: int, rows: int, where: Path) -> None:
    """A DataError where there are more tokens than rows; more rows are common padding."""
    if tokens > rows:
        raise DataError(f"{where}: the tokenizer has {tokens:,} tokens, the model's token table only {rows:,} rows")


def _tokens(definition: Mapping[str, Any], lines: bytes) -> int:
    """A lower bound of the vocabulary size."""
    model = definition.get("model")
    vocabulary = model.get("vocab") if isinstance(model, Mapping) else None
    if definition:
        return len(vocabulary) if isinstance(vocabulary, dict | list) else 0
    return lines.count(b"\n")


def fitted(tokenizer: Tokenizer, positions: int) -> Tokenizer:
    """The tokenizer with a maximum length of at most the model's positions, where transformers truncates."""
    if tokenizer.max_length <= positions:
        return tokenizer
    return _changed(tokenizer, max_length=positions)


def spelling(tokenizer: Tokenizer, *, case: bool = False, reads_ids: bool = True) -> Tokenizer:
    """The tokenizer with the spelling of each token, for encoders that read characters.

    `case`: as it is written; `reads_ids`: they read ids too.
    """
    return _changed(tokenizer, spells=True, spells_case=case, open_vocabulary=not reads_ids)


def _changed(tokenizer: Tokenizer, **changes: Any) -> Tokenizer:
    other: Tokenizer = object.__new__(type(tokenizer))  # subclasses have constructors of their own
    vars(other).update(vars(tokenizer) | changes)
    return other


def spell_vocabulary(encoder: Encoder, tokenizer: Tokenizer) -> None:
    """Gives an encoder that reads the spelling of its vocabulary that of the tokenizer's."""
    if encoder.spellings is not None:
        names = enumerate(tokenizer.tokens())
        encoder.set_spellings(["" if number in tokenizer.special_ids else token for number, token in names])
    if "ids" not in encoder.reads:
        max_characters: int = getattr(encoder.config, "max_characters", MAX_CHARACTERS)
        encoder.set_vocabulary_characters(torch.from_numpy(vocabulary_characters(tokenizer, max_characters)))


def vocabulary_characters(tokenizer: Tokenizer, max_characters: int) -> Characters:
    """The characters of each token of the vocabulary [V, C]."""
    return characters_of_tokens(tokenizer.tokens(), tokenizer.special_tokens.roles(), max_characters=max_characters)


def fitted_to(encoder: Encoder, tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer as the encoder reads texts; the encoder gets the spelling of its vocabulary where it reads it."""
    spell_vocabulary(encoder, tokenizer)
    tokenizer, reads = fitted(tokenizer, encoder.max_positions), encoder.reads
    if encoder.reads_stream:
        frame = stream_frame(tokenizer.build_frame(), backward=encoder.direction == "backward")
        tokenizer = _changed(tokenizer, frame_ids=frame)
    if "characters" not in reads:
        return tokenizer
    return spelling(tokenizer, case=encoder.reads_case, reads_ids="ids" in reads)


def vocabulary_of(tokenizer: Tokenizer) -> Vocabulary:
    """The vocabulary that objectives read."""
    mask, end = tokenizer.special_tokens.mask, tokenizer.special_tokens.end
    return Vocabulary(
        size=tokenizer.vocab_size,
        mask_id=None if mask is None else tokenizer.token_to_id(mask),
        end_id=None if end is None else tokenizer.token_to_id(end),
        special_ids=tuple(sorted(tokenizer.special_ids)),
        is_continuation=tokenizer.is_continuation(),
    )
