"""Tokenizer folders in the layout of transformers: tokenizer.json, tokenizer_config.json, vocab.txt, merges.txt."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tokenizers

from bertsmith.errors import DataError
from bertsmith.tokenizers.special_tokens import SpecialTokens

CONFIG = "tokenizer_config.json"
DEFINITION = "tokenizer.json"
SPECIAL_TOKENS_MAP = "special_tokens_map.json"
BPE_VOCABULARY = "vocab.json"
MERGES = "merges.txt"
TARGET = "target_"  # prefix of the files of a tokenizer of target texts
OWN_FILES = (CONFIG, DEFINITION, SPECIAL_TOKENS_MAP, "vocab.txt", BPE_VOCABULARY, MERGES)
TOKENIZER_FILES = (*OWN_FILES, *(f"{TARGET}{name}" for name in OWN_FILES))  # that `save` writes
MODEL_CONFIG = "config.json"
MAX_LENGTH = 512  # positions of BERT and RoBERTa
# The class that transformers takes for a model_type of config.json, if no file names one.
CLASSES = {
    **dict.fromkeys(("bert", "electra", "distilbert"), "BertTokenizer"),
    "roberta": "RobertaTokenizer",
    "xlm-roberta": "XLMRobertaTokenizer",
    "albert": "AlbertTokenizer",
    "roformer": "RoFormerTokenizer",
    "modernbert": "PreTrainedTokenizer",
    "openai-gpt": "OpenAIGPTTokenizer",
}
NAMED_KEYS = [f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask")]
EXTRA_KEYS = ("extra_special_tokens", "additional_special_tokens")

Merges = list[tuple[str, str]]


@dataclass(frozen=True)
class TokenizerFolder:
    """The JSON files of a tokenizer folder, read once; absent files are empty."""

    path: Path
    config: Mapping[str, Any]  # tokenizer_config.json
    definition: Mapping[str, Any]  # tokenizer.json, as the tokenizers library writes it
    special_tokens_map: Mapping[str, Any]  # special_tokens_map.json, in folders written before transformers 5
    model_config: Mapping[str, Any]  # config.json
    lowercase: bool | None = None  # as requested, instead of the folder's setting
    notes: list[str] = field(default_factory=list)  # what users should know about the tokenizer
    prefix: str = ""  # of the names of its files

    @classmethod
    def open(cls, path: str | Path, *, lowercase: bool | None = None, prefix: str = "") -> TokenizerFolder:
        path = Path(path)
        if not path.is_dir():
            raise DataError(f"{path} is not a folder: a tokenizer is a folder with {DEFINITION} or vocab.txt")
        names = (CONFIG, DEFINITION, SPECIAL_TOKENS_MAP)
        config, definition, special = (read_json(path / f"{prefix}{name}") for name in names)
        return cls(path, config, definition, special, read_json(path / MODEL_CONFIG), lowercase, prefix=prefix)

    def file(self, name: str) -> Path:
        """The path of one of its files."""
        return self.path / f"{self.prefix}{name}"

    @property
    def class_name(self) -> str:
        """The class that transformers takes, without "Fast"; empty if neither a name nor the model_type tells."""
        named = self.config.get("tokenizer_class") or self.model_config.get("tokenizer_class")
        return str(named or CLASSES.get(str(self.model_config.get("model_type")), "")).removesuffix("Fast")

    def refuse_own_code(self) -> None:
        """Raises a DataError if the tokenizer needs code that is not run (auto_map) or not supported (jieba)."""
        automatic = self.config.get("auto_map")
        if isinstance(automatic, list) or (isinstance(automatic, Mapping) and automatic.get("AutoTokenizer")):
            name = self.class_name or "named in auto_map"
            raise DataError(
                f"{self.path}: its tokenizer class {name} is code of its own (auto_map), which is never run"
            )
        if self.class_name == "RoFormerTokenizer":
            raise DataError(
                f"{self.path}: RoFormerTokenizer splits texts with jieba, which is not supported; "
                f"if BERT's tokenizer trained this model, set tokenizer_class to BertTokenizer in {CONFIG}"
            )

    def setting(self, key: str, default: bool | None) -> bool | None:
        """A setting of tokenizer_config.json that is true or false, or null where that is the default."""
        value = self.config.get(key, default)
        if not isinstance(value, bool) and value is not default:
            raise DataError(f"{self.file(CONFIG)}: {key} is {str(value)[:50]!r}, expected true or false")
        return value

    @property
    def model(self) -> Mapping[str, Any]:
        """The model section of tokenizer.json: type, vocabulary and merges."""
        return self.section("model")

    def section(self, name: str) -> Mapping[str, Any]:
        """A section of tokenizer.json, such as its normalizer; empty if absent."""
        value = self.definition.get(name)
        return value if isinstance(value, Mapping) else {}

    def has(self, name: str) -> bool:
        return self.file(name).is_file()

    def special_tokens(self, keys: Mapping[str, str], defaults: SpecialTokens) -> SpecialTokens:
        """Special tokens by role; `keys` maps a role to its key in tokenizer_config.json (`cls_token`)."""
        named = {role: self.named_token(key) for role, key in keys.items()}
        return SpecialTokens(**defaults.roles() | {role: token for role, token in named.items() if token is not None})

    def named_token(self, key: str) -> str | None:
        """The special token with a key such as `cls_token`, by the precedence of transformers."""
        files = [self.special_tokens_map, self.config]
        for names in files[::-1] if "added_tokens_decoder" in self.config else files:
            value = names.get(key)
            token = value.get("content") if isinstance(value, Mapping) else value
            if token is not None:
                return str(token)
        return None

    def vocabulary(self) -> list[str]:
        """The tokens of tokenizer.json's model, by id."""
        return tokens_in_id_order(self.model.get("vocab"), self.file(DEFINITION))

    def max_length(self) -> int:
        """`model_max_length` of tokenizer_config.json, or `max_len` as in its first versions."""
        value = self.config.get("model_max_length", self.config.get("max_len"))
        return int(value) if isinstance(value, int | float) else MAX_LENGTH

    def added(self) -> list[tuple[int | None, tokenizers.AddedToken]]:
        """Tokens that the backend matches in texts before its rules, special or not, by id; None: any id."""
        entries = {int(entry["id"]): entry for entry in self.definition.get("added_tokens") or []}
        if not self.definition:
            special_tokens = {entry["content"] for entry in self._extra_tokens()} | {*map(self.named_token, NAMED_KEYS)}
            for token, number in read_json(self.file("added_tokens.json")).items():
                special = token in special_tokens
                entries[int(number)] = {"content": token, "normalized": not special, "special": special}
            for number, entry in (self.config.get("added_tokens_decoder") or {}).items():
                entries[int(number)] = entry
        known = {str(entry["content"]) for entry in entries.values()}
        numbered = [(number, _added_token(entry)) for number, entry in sorted(entries.items())]
        others = [_added_token(entry) for entry in self._extra_tokens() if entry["content"] not in known]
        return [*numbered, *((None, token) for token in others)]

    def _extra_tokens(self) -> Iterator[dict[str, Any]]:
        """Special tokens without a role."""
        files = (self.config, self.special_tokens_map)
        found: Any = next((names[key] for names in files for key in EXTRA_KEYS if names.get(key)), [])
        for token in found.values() if isinstance(found, Mapping) else found:
            yield {**(token if isinstance(token, Mapping) else {"content": str(token)}), "special": True}

    def merges(self) -> tuple[list[str], Merges]:
        """Tokens by id and merges, from tokenizer.json if there is one, else from vocab.json and merges.txt."""
        if self.definition:
            tokens, merges = self.vocabulary(), self.model.get("merges")
        elif absent := [name for name in (BPE_VOCABULARY, MERGES) if not self.has(name)]:
            raise DataError(
                f"{self.path} has no {' and no '.join(absent)}, which {self.class_name} needs; "
                f"if the tokenizer is of another class, name it as tokenizer_class in {CONFIG}"
            )
        else:
            tokens = tokens_in_id_order(read_json(self.file(BPE_VOCABULARY)), self.file(BPE_VOCABULARY))
            lines = read_text(self.file(MERGES)).replace("\r\n", "\n").split("\n")
            merges = [line for line in lines if line and not line.startswith("#version")]
        if not isinstance(merges, list):
            raise DataError(f"{self.file(DEFINITION)} has no merges: it is not a byte-pair encoding")
        return tokens, _pairs(merges, self.path)


def _added_token(entry: Mapping[str, Any]) -> tokenizers.AddedToken:
    flags = {name: bool(entry.get(name)) for name in ("single_word", "lstrip", "rstrip", "normalized", "special")}
    return tokenizers.AddedToken(str(entry["content"]), **flags)


def backend_merges(backend: tokenizers.Tokenizer) -> Merges:
    """The merges of a backend, in order of application."""
    return _pairs(json.loads(backend.to_str())["model"]["merges"], DEFINITION)


def _pairs(merges: list[Any], where: object) -> Merges:
    """Merges as pairs; older files have them as `left right`."""
    pairs: Merges = []
    for number, merge in enumerate(merges):
        symbols = merge.split(" ") if isinstance(merge, str) else merge
        if len(symbols) != 2:
            raise DataError(f"{where}: merge {number} is {merge!r}, not two symbols")
        pairs.append((symbols[0], symbols[1]))
    return pairs


def read_text(path: Path) -> str:
    """A UTF-8 text file; problems are DataErrors that name it."""
    try:
        return path.read_bytes().decode("utf-8")
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}") from error


def read_vocabulary(path: Path) -> list[str]:
    """The tokens of a vocab.txt, one per line."""
    lines = read_text(path).replace("\r\n", "\n").split("\n")
    tokens = lines[:-1] if lines[-1] == "" else lines
    seen: dict[str, int] = {}
    for number, token in enumerate(tokens, start=1):
        if token in seen:
            raise DataError(f"{path}: line {number} repeats {token!r} of line {seen[token]}: a token has one id")
        seen[token] = number
    return tokens


def vocabulary_bytes(tokens: list[str]) -> bytes:
    """The content of a vocab.txt."""
    return "".join(f"{token}\n" for token in tokens).encode()


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty if the file is absent."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise error if isinstance(error, DataError) else DataError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise DataError(f"{path} must hold a JSON object, not {type(value).__name__}")
    return value


def json_bytes(value: Any) -> bytes:
    """JSON with an indent of two spaces, unescaped characters and a final line end."""
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


def tokens_in_id_order(ids: Any, where: object) -> list[str]:
    """The tokens of a vocabulary {token: id}, by id; ids must be 0, 1, 2, ... without gaps."""
    if not isinstance(ids, dict) or not ids or not all(isinstance(number, int) for number in ids.values()):
        raise DataError(f"{where} has no vocabulary: expected a table of tokens and their ids")
    tokens: list[str] = sorted(ids, key=lambda token: ids[token])
    for expected, token in enumerate(tokens):
        if ids[token] != expected:
            raise DataError(f"{where}: token {token!r} has id {ids[token]}, expected {expected}")
    return tokens
