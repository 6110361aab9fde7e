"""Words as characters, for encoders that read the spelling of words: UTF-8 bytes between two marks (P-ELMo's code).

bilm: data.py, UnicodeCharsVocabulary: bytes are 0 to 255; 256 and 257 begin and end a text, 258 and 259 a word.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from bertsmith.tokenizers.pretokenization import replace_surrogates
from bertsmith.types import Encoded

TEXT_BEGIN, TEXT_END, WORD_BEGIN, WORD_END, PADDING = range(256, 261)
MAX_CHARACTERS = 1024  # characters of a word, marks included; a batch is as wide as its longest word

Characters = NDArray[np.int16]


def spell(words: Sequence[str], *, max_characters: int = MAX_CHARACTERS) -> Characters:
    """The characters of each word [N, C]: begin mark, bytes, end mark, padding; of longer words the first bytes."""
    return spell_bytes([word.encode("utf-8", "replace") for word in words], max_characters=max_characters)


def spell_bytes(words: Sequence[bytes], *, max_characters: int = MAX_CHARACTERS) -> Characters:
    """The characters of words in UTF-8."""
    encoded = [word[: max_characters - 2] for word in words]
    sizes = np.array([len(word) for word in encoded], np.int64)
    result = np.full((len(words), int(sizes.max(initial=0)) + 2), PADDING, np.int16)
    row = np.repeat(np.arange(len(words)), sizes)
    within = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    result[row, within + 1] = np.frombuffer(b"".join(encoded), np.uint8)
    result[:, 0] = WORD_BEGIN
    result[np.arange(len(words)), sizes + 1] = WORD_END
    return result


def encoded_word(word: str, *, lowercase: bool) -> bytes:
    """The bytes of a word of a text that `spell` reads."""
    return (word.lower() if lowercase else word).encode("utf-8", "replace")[: MAX_CHARACTERS - 2]


def spell_tokens(text: str, encoded: Encoded, *, lowercase: bool) -> Encoded:
    """The same with the characters of each token."""
    text = replace_surrogates(text)
    words = [encoded_word(text[begin:end], lowercase=lowercase) for begin, end in encoded.offsets.tolist()]
    return replace(encoded, characters=spell_bytes(words))


def spell_vocabulary(
    tokens: Sequence[str], roles: Mapping[str, str], *, max_characters: int = MAX_CHARACTERS
) -> Characters:
    """The characters of each token of a vocabulary [V, C]; the special tokens of these `roles` are marks of texts."""
    table = np.full((len(tokens), max_characters), PADDING, np.int16)
    spelled = spell(tokens, max_characters=max_characters)
    table[:, : spelled.shape[1]] = spelled
    ids = {token: number for number, token in enumerate(tokens)}
    marks = {"padding": None, "end": TEXT_END, "separator": TEXT_END, "start": TEXT_BEGIN}
    for role, character in marks.items():
        if (number := ids.get(roles.get(role, ""))) is not None:
            table[number] = PADDING
            if character is not None:
                table[number, :3] = mark(character)
    return table


def lower(characters: Characters) -> Characters:
    """The same words [N, C] in lower case, which may have more bytes."""
    words = [row[row < TEXT_BEGIN].astype(np.uint8).tobytes().decode("utf-8", "replace") for row in characters]
    result = spell([word.lower() for word in words])
    kept = np.isin(characters, (TEXT_BEGIN, TEXT_END)).any(1) | ~(characters == WORD_BEGIN).any(1)
    width = max(result.shape[1], characters.shape[1])
    return np.where(kept[:, None], widened(characters, width), widened(result, width))


def mark(character: int) -> Characters:
    """A mark of a text as a word of its own [3]."""
    return np.array([WORD_BEGIN, character, WORD_END], np.int16)


def widened(characters: Characters, width: int) -> Characters:
    """The same words with more padding [..., width]."""
    missing = [(0, 0)] * (characters.ndim - 1) + [(0, width - characters.shape[-1])]
    return np.pad(characters, missing, constant_values=PADDING)
