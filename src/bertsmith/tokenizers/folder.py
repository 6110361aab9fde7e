"""A tokenizer folder as transformers lays it out: reading its JSON files, special tokens by role, writing them again.

Knows the layout of such folders, and nothing of the rules of any one kind.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers

from bertsmith.errors import DataError
from bertsmith.tokenizers.special_tokens import SpecialTokens

CONFIG = "tokenizer_config.json"
DEFINITION = "tokenizer.json"
SPECIALS_MAP = "special_tokens_map.json"


@dataclass(frozen=True)
class TokenizerFolder:
    """What a tokenizer folder holds, read once; the JSON files that are absent are empty."""

    path: Path
    config: Mapping[str, Any]  # tokenizer_config.json
    definition: Mapping[str, Any]  # tokenizer.json, as the tokenizers library writes it
    specials_map: Mapping[str, Any]  # special_tokens_map.json, in folders written before transformers 5

    @classmethod
    def open(cls, path: str | Path) -> TokenizerFolder:
        """Reads the JSON files of a folder."""
        path = Path(path)
        if not path.is_dir():
            raise DataError(f"{path} is no folder: a tokenizer is a folder with {DEFINITION} or vocab.txt in it")
        config, definition, specials_map = (read_json(path / name) for name in (CONFIG, DEFINITION, SPECIALS_MAP))
        return cls(path, config, definition, specials_map)

    @property
    def class_name(self) -> str:
        """transformers' class that the folder was written for, without "Fast"; empty where it does not say."""
        return str(self.config.get("tokenizer_class") or "").removesuffix("Fast")

    @property
    def model(self) -> Mapping[str, Any]:
        """The model part of tokenizer.json: its type, vocabulary and merges."""
        return self.part("model")

    def part(self, name: str) -> Mapping[str, Any]:
        """A part of tokenizer.json, such as its normalizer; empty where it has none."""
        found = self.definition.get(name)
        return found if isinstance(found, Mapping) else {}

    def has(self, name: str) -> bool:
        return (self.path / name).is_file()

    def text(self, name: str) -> str:
        """A text file of the folder."""
        return read_text(self.path / name)

    def special_tokens(self, keys: Mapping[str, str], defaults: SpecialTokens) -> SpecialTokens:
        """Special tokens by role: `keys` says under which of transformers' names (`cls_token`) each role is found."""
        found = defaults.roles()
        for role, key in keys.items():
            value = self.config.get(key, self.specials_map.get(key))
            spelling = value.get("content") if isinstance(value, Mapping) else value
            if spelling is not None:
                found[role] = str(spelling)
        return SpecialTokens(**found)

    def vocabulary(self) -> list[str]:
        """The tokens of tokenizer.json's model, by id."""
        return tokens_in_id_order(self.model.get("vocab"), self.path / DEFINITION)

    def max_length(self, default: int) -> int:
        """The longest row that the model takes."""
        value = self.config.get("model_max_length")
        return int(value) if isinstance(value, int | float) else default

    def added(self) -> list[tuple[int, tokenizers.AddedToken]]:
        """Tokens that the backend looks for in texts before its rules, special ones and others, by id."""
        entries = {int(entry["id"]): entry for entry in self.definition.get("added_tokens") or []}
        if not self.definition:
            for spelling, number in read_json(self.path / "added_tokens.json").items():
                entries[int(number)] = {"content": spelling, "normalized": True}
            for number, entry in (self.config.get("added_tokens_decoder") or {}).items():
                entries[int(number)] = entry
        return [(number, _added_token(entry)) for number, entry in sorted(entries.items())]


def _added_token(entry: Mapping[str, Any]) -> tokenizers.AddedToken:
    flags = {name: bool(entry.get(name)) for name in ("single_word", "lstrip", "rstrip", "normalized", "special")}
    return tokenizers.AddedToken(str(entry["content"]), **flags)


def read_text(path: Path) -> str:
    """A UTF-8 text file; what is wrong with it is a DataError that names it."""
    try:
        return path.read_bytes().decode("utf-8")
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}") from error


def read_vocabulary(path: Path) -> list[str]:
    """The tokens of a vocab.txt, by line."""
    lines = read_text(path).replace("\r\n", "\n").split("\n")
    tokens = lines[:-1] if lines[-1] == "" else lines
    seen: dict[str, int] = {}
    for number, token in enumerate(tokens, start=1):
        if token in seen:
            raise DataError(f"{path}: line {number} repeats {token!r} of line {seen[token]}: a token has one id")
        seen[token] = number
    return tokens


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file, or nothing where the file is absent."""
    if not path.is_file():
        return {}
    try:
        found = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise error if isinstance(error, DataError) else DataError(f"{path} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise DataError(f"{path} must hold a JSON object, not {type(found).__name__}")
    return found


def json_bytes(value: Any) -> bytes:
    """JSON as we write it: two spaces, letters as they are, a line end at the end."""
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


def tokens_in_id_order(ids: Any, where: object) -> list[str]:
    """The tokens of a vocabulary {token: id} by id; anything but ids that run from 0 without a gap is a DataError."""
    if not isinstance(ids, dict) or not ids or not all(isinstance(number, int) for number in ids.values()):
        raise DataError(f"{where} holds no vocabulary: a table of tokens and their ids is needed")
    tokens: list[str] = sorted(ids, key=lambda token: ids[token])
    for expected, token in enumerate(tokens):
        if ids[token] != expected:
            raise DataError(f"{where}: token {token!r} has id {ids[token]}, but {expected} is next")
    return tokens


VOCABULARY = "vocab.json"
MERGES = "merges.txt"

Merges = list[tuple[str, str]]


def merges_of(backend: tokenizers.Tokenizer) -> Merges:
    """The merges of a backend, in the order in which they are applied."""
    return _pairs(json.loads(backend.to_str())["model"]["merges"], "tokenizer.json")


def read_merges(contents: TokenizerFolder) -> tuple[list[str], Merges]:
    """Tokens by id and merges of a folder: from tokenizer.json if it has one, else from vocab.json and merges.txt."""
    if contents.definition:
        tokens, written = contents.vocabulary(), contents.model.get("merges")
    else:
        tokens = tokens_in_id_order(read_json(contents.path / VOCABULARY), contents.path / VOCABULARY)
        lines = contents.text(MERGES).replace("\r\n", "\n").split("\n")
        written = [line for line in lines if line and not line.startswith("#version")]
    if not isinstance(written, list):
        raise DataError(f"{contents.path / 'tokenizer.json'} has no merges: it holds no byte-pair encoding")
    return tokens, _pairs(written, contents.path)


def merges_files(backend: tokenizers.Tokenizer, merges: Merges) -> dict[str, bytes]:
    """vocab.json and merges.txt."""
    ids = backend.get_vocab(with_added_tokens=False)
    ordered = {token: number for number, token in enumerate(tokens_in_id_order(ids, "the vocabulary"))}
    lines = ["#version: 0.2", *(f"{left} {right}" for left, right in merges)]
    return {
        VOCABULARY: json.dumps(ordered, ensure_ascii=False).encode(),
        MERGES: "".join(f"{line}\n" for line in lines).encode(),
    }


def _pairs(written: list[Any], where: object) -> Merges:
    """Merges as pairs; older files have them as `left right`."""
    pairs: Merges = []
    for number, merge in enumerate(written):
        parts = merge.split(" ") if isinstance(merge, str) else merge
        if len(parts) != 2:
            raise DataError(f"{where}: merge {number} is {merge!r}, not two symbols")
        pairs.append((parts[0], parts[1]))
    return pairs
