"""How texts become the words that unigram pieces are learned from: ALBERT's normalisation, and where words are cut.

What a piece must never span (two scripts, a symbol, a digit and its comma) is kept out of pieces by cutting the words
that they are learned from: then no rule is needed when texts are encoded.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from tokenizers import normalizers, pre_tokenizers

from bertsmith.tokenizers.units import Units

SPACE = "▁"
# Python's split() takes these for white space, ALBERT's rules do not.
UNITS = Units(str.split, irregular=re.compile("[\x1c-\x1f]"))
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

    units = UNITS

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
