"""How BERT cuts a text into words, before any vocabulary is asked (bert: tokenization.py, BasicTokenizer)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import Any

from tokenizers import normalizers, pre_tokenizers

from bertsmith.tokenizers.units import Units

# A run of ASCII letters, digits and Hangul syllables is a word, an ASCII sign is one too; what touches any other
# character stays together up to the next white space. Python's white space includes characters that BERT removes
# without splitting there: texts with such are irregular.
WORD = re.compile("[A-Za-z0-9가-힣]+|[!-~]")
UNIT = re.compile(r"[A-Za-z0-9가-힣]++(?![^\s!-~])|[!-/:-@\[-`{-~](?![^\s!-~가-힣])|\S+")
UNITS = Units(UNIT.findall, irregular=re.compile("[\x0b\x0c\x1c-\x1f\x85]"))


class Splitter:
    """One unit -> normalised words, as BertNormalizer and BertPreTokenizer make them."""

    units = UNITS

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
