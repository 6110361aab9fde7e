"""What every tokenizer is: encode, frame, decode, fingerprint, save and load; and the look-up of kinds by file name.

The work is done by a `tokenizers.Tokenizer` (the backend). A kind says which rules that backend has, which special
token stands where, and which files describe it. Knows no kind by name.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol, Self

import numpy as np
import tokenizers
from numpy.typing import ArrayLike, NDArray
from tokenizers import models

from bertsmith import config, types
from bertsmith.errors import BertsmithError, DataError
from bertsmith.system.durable import Disk
from bertsmith.tokenizers import folder, training
from bertsmith.tokenizers.folder import TokenizerFolder
from bertsmith.tokenizers.pretokenization import ChunkCache, Chunker, Ids, encode_chunks, replace_surrogates
from bertsmith.tokenizers.special_tokens import FrameTemplate, SpecialTokens, frame_texts, register_special_tokens

FOLDER = "bertsmith.tokenizers"
MAX_LENGTH = 512  # the longest row that BERT's and RoBERTa's positions allow


class Tokenizer:
    """A backend with its special tokens by role. Threads and processes may share one: nothing in it changes."""

    kind: ClassVar[str]
    transformers_classes: ClassVar[
        tuple[str, ...]
    ] = ()  # transformers' class names (without "Fast") that mean this kind
    special_token_keys: ClassVar[Mapping[str, str]]  # role -> transformers' name for it in tokenizer_config.json
    template: ClassVar[FrameTemplate] = FrameTemplate()
    default_chunker: ClassVar[Chunker] = Chunker()
    cache_limit: int = 400_000  # units that `encode_ids` remembers

    def __init__(
        self, backend: tokenizers.Tokenizer, *, special_tokens: SpecialTokens, max_length: int = MAX_LENGTH
    ) -> None:
        backend.encode_special_tokens = True  # spellings of special tokens in a text are text
        self.backend = backend
        self.special_tokens = special_tokens
        self.max_length = max_length  # the longest row that the model takes: `model_max_length` in the folder
        self._tokens = folder.tokens_in_id_order(
            backend.get_vocab(with_added_tokens=True), f"this {self.kind} vocabulary"
        )
        self._ids = {token: number for number, token in enumerate(self._tokens)}
        self._roles = {role: self._ids[token] for role, token in special_tokens.roles().items()}
        added = backend.get_added_tokens_decoder().items()
        self.special_ids: frozenset[int] = frozenset(number for number, token in added if token.special)
        self._ordinary_added = [token for _, token in added if not token.special]
        self.frame_ids: types.Frame = self.template.build(self._roles)
        self._known = ChunkCache(self._slow_ids, self.chunker(), id_type=self.id_dtype, limit=self.cache_limit)

    def rules(self) -> dict[str, Any]:
        """Everything besides vocabulary, special tokens and frame that decides ids, as plain JSON values."""
        raise NotImplementedError

    def transformers_config(self) -> dict[str, Any]:
        """What transformers needs in tokenizer_config.json to build the same rules, `tokenizer_class` first."""
        raise NotImplementedError

    def vocabulary_files(self) -> dict[str, bytes]:
        """The kind's own files, such as vocab.txt."""
        return {}

    def is_continuation(self) -> NDArray[np.bool_] | None:
        """By id, whether a token goes on with the word before it; None where tokens do not tell."""
        return None

    @classmethod
    def from_folder(cls, contents: TokenizerFolder) -> Self:
        """A folder of this kind."""
        raise NotImplementedError

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """A folder of this kind; what is wrong with it is a DataError that names it."""
        try:
            return cls.from_folder(TokenizerFolder.open(path))
        except DataError as error:
            raise error if str(path) in str(error) else DataError(f"{path}: {error}") from error
        except Exception as error:  # the tokenizers library raises bare ones for what it cannot read
            raise DataError(f"{path}: its files are not as transformers writes them ({error!r})") from error

    @classmethod
    def recognises(cls, contents: TokenizerFolder) -> bool:
        """Whether a folder that names none of `classes` is of this kind."""
        return False

    def encode(self, text: str, *, parse_special_tokens: bool = False) -> types.Encoded:
        """Ids, offsets into `text` as it was given, and word numbers; no special tokens are put round it."""
        backend = self._reading_specials if parse_special_tokens else self.backend
        return _encoded(backend.encode(replace_surrogates(text), add_special_tokens=False))

    def encode_batch(self, texts: Sequence[str]) -> list[types.Encoded]:
        """`encode` of each text, over all cores."""
        found = self.backend.encode_batch([replace_surrogates(text) for text in texts], add_special_tokens=False)
        return [_encoded(encoding) for encoding in found]

    def encode_ids(self, texts: Sequence[str]) -> tuple[Ids, NDArray[np.int64]]:
        """The ids of all texts in one array [T] and how many each text has [texts]: the fast road, for shards."""
        return self._known(texts)

    def frame(self, a: types.Encoded, b: types.Encoded | None = None, *, max_length: int) -> types.Row:
        """One or two texts between their special tokens, at most `max_length` tokens in all."""
        return frame_texts(self.frame_ids, a, b, max_length=max_length)

    def decode(self, ids: ArrayLike, *, skip_special_tokens: bool = True) -> str:
        """The text that ids stand for, as far as the rules kept it."""
        numbers = np.asarray(ids, dtype=np.int64).tolist()
        for number in numbers:
            self.id_to_token(number)
        return self.backend.decode(numbers, skip_special_tokens=skip_special_tokens)

    @property
    def vocab_size(self) -> int:
        return len(self._tokens)

    @property
    def id_dtype(self) -> np.dtype[Any]:
        """The smallest type that holds every id."""
        return np.dtype(np.uint16 if self.vocab_size <= 1 << 16 else np.uint32)

    def tokens(self) -> list[str]:
        """Every token, by id."""
        return list(self._tokens)

    def id_to_token(self, number: int) -> str:
        """The token with that id."""
        if not 0 <= number < len(self._tokens):
            raise BertsmithError(f"id {number} is outside this vocabulary of {len(self._tokens)} tokens")
        return self._tokens[number]

    def token_to_id(self, token: str) -> int | None:
        """The id of a token, if it has one."""
        return self._ids.get(token)

    @property
    def padding_id(self) -> int:
        return self._roles["padding"]

    @property
    def unknown_id(self) -> int:
        return self._roles["unknown"]

    @property
    def start_id(self) -> int:
        return self._role("start")

    @property
    def separator_id(self) -> int:
        return self._role("separator")

    @property
    def end_id(self) -> int:
        return self._role("end")

    @property
    def mask_id(self) -> int:
        return self._role("mask")

    def _role(self, role: str) -> int:
        if role not in self._roles:
            raise BertsmithError(f"this {self.kind} tokenizer has no {role} token; it has {', '.join(self._roles)}")
        return self._roles[role]

    @cached_property
    def fingerprint(self) -> str:
        """16 hexadecimal digits: equal for tokenizers that give every text the same ids and frame."""
        parts = self.frame_ids
        added = [[token.content, token.single_word, token.lstrip, token.rstrip] for token in self._ordinary_added]
        frame = [parts.single, parts.pair, parts.pair_segments]
        form = {"kind": self.kind, "rules": self.rules(), "tokens": self._tokens, "added": added, "frame": frame}
        text = json.dumps(form | {"specials": self.special_tokens.roles()}, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def files(self) -> dict[str, bytes]:
        """The folder as transformers knows it, by file name; the same tokenizer gives the same bytes."""
        named = {key: self.special_tokens.roles()[role] for role, key in self.special_token_keys.items()}
        settings = self.transformers_config() | named | {"model_max_length": self.max_length}
        return {
            folder.CONFIG: folder.json_bytes(settings),
            folder.SPECIALS_MAP: folder.json_bytes(named),
            folder.DEFINITION: self.backend.to_str(pretty=True).encode() + b"\n",
            **self.vocabulary_files(),
        }

    def save(self, path: str | Path, disk: Disk | None = None) -> None:
        """Writes `files()` into a folder, which is made if need be."""
        disk = disk or Disk()
        disk.make_folder(path)
        for name, content in self.files().items():
            disk.write_file(Path(path) / name, [content])

    @cached_property
    def _reading_specials(self) -> tokenizers.Tokenizer:
        """A second backend: whether special tokens are read in texts is a state of the backend, which threads share."""
        return tokenizers.Tokenizer.from_str(self.backend.to_str())

    def _slow_ids(self, texts: list[str]) -> list[list[int]]:
        return encode_chunks(self.backend, texts)

    def chunker(self) -> Chunker:
        # A token that others have added may hold white space, or swallow what stands round it: then texts stay whole.
        return Chunker(lambda text: [text]) if self._ordinary_added else self.default_chunker

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.backend.to_str(), self.special_tokens, self.max_length)


def _rebuild(cls: type[Tokenizer], definition: str, special_tokens: SpecialTokens, max_length: int) -> Tokenizer:
    return cls(tokenizers.Tokenizer.from_str(definition), special_tokens=special_tokens, max_length=max_length)


def _encoded(encoding: tokenizers.Encoding) -> types.Encoded:
    words = np.array(encoding.word_ids, np.int32)
    begins = np.diff(words, prepend=words[:1]) != 0  # words that came to nothing leave gaps in their numbers
    return types.Encoded(
        ids=np.array(encoding.ids, np.int32),
        offsets=np.array(encoding.offsets, np.int32).reshape(-1, 2),
        words=np.cumsum(begins, dtype=np.int32),
    )


class TokenizerConfig(Protocol):
    """A kind's `Config`: how a vocabulary is learned from counted words."""

    def word_splitter(self) -> training.WordSplitter:
        """How texts become the words that are counted."""

    def train(self, counts: dict[str, int], *, vocab_size: int) -> Tokenizer:
        """A tokenizer of at most that many tokens; takes the counts over and may empty them."""


class Kind(NamedTuple):
    """A kind of tokenizer: the classes of one file of this folder."""

    name: str
    config: type[TokenizerConfig]
    tokenizer: type[Tokenizer]


def kinds() -> list[str]:
    """The names of all kinds: the files of this folder that have a `Config`."""
    return config.kinds(FOLDER)


def kind(name: str) -> Kind:
    """The kind with that name."""
    module = config.find_kind(FOLDER, name)
    here = [value for value in vars(module).values() if isinstance(value, type) and value.__module__ == module.__name__]
    (tokenizer,) = [value for value in here if issubclass(value, Tokenizer)]
    return Kind(name, module.Config, tokenizer)


def load(path: str | Path) -> Tokenizer:
    """The tokenizer in a folder, ours or one written by transformers, whatever its kind."""
    contents = TokenizerFolder.open(path)
    known = [kind(name).tokenizer for name in kinds()]
    for tokenizer in known:
        if contents.class_name in tokenizer.transformers_classes:
            return tokenizer.read(path)
    for tokenizer in known:
        if tokenizer.recognises(contents):
            return tokenizer.read(path)
    found = contents.class_name or contents.model.get("type") or "no tokenizer_config.json, tokenizer.json or vocab.txt"
    raise DataError(f"{path}: no kind of tokenizer here reads this folder ({found}); kinds: {', '.join(kinds())}")


class Token(NamedTuple):
    """A token of a text: its id, where it stands, and the number of its word."""

    id: int
    begin: int
    end: int
    word: int


class PythonTokenizer(Tokenizer):
    """A vocabulary and a rule. Its backend holds the vocabulary but cannot say the rule: no tokenizer.json here."""

    def __init__(self, tokens: Sequence[str], *, special_tokens: SpecialTokens, max_length: int) -> None:
        ids = {token: number for number, token in enumerate(tokens)}
        backend = tokenizers.Tokenizer(models.WordLevel(ids, unk_token=special_tokens.unknown))
        register_special_tokens(backend, special_tokens)
        super().__init__(backend, special_tokens=special_tokens, max_length=max_length)

    def cut(self, text: str) -> Iterable[Token]:
        """The tokens of a text without lone surrogates, words counted from 0."""
        raise NotImplementedError

    def encode(self, text: str, *, parse_special_tokens: bool = False) -> types.Encoded:
        text = replace_surrogates(text)
        if not parse_special_tokens:
            return _encoded_tokens(self.cut(text))
        found: list[Token] = []
        at = 0
        for place, part in enumerate(self._specials_pattern.split(text)):  # every second part is a special token
            tokens = [Token(self._ids[part], 0, len(part), 0)] if place % 2 else self.cut(part)
            word = found[-1].word + 1 if found else 0
            found += [Token(number, at + begin, at + end, word + own) for number, begin, end, own in tokens]
            at += len(part)
        return _encoded_tokens(found)

    def encode_batch(self, texts: Sequence[str]) -> list[types.Encoded]:
        return [self.encode(text) for text in texts]

    def files(self) -> dict[str, bytes]:
        return {name: content for name, content in super().files().items() if name != folder.DEFINITION}

    @cached_property
    def _specials_pattern(self) -> re.Pattern[str]:
        tokens = sorted(self.special_tokens.tokens(), key=lambda token: (-len(token), token))
        return re.compile(f"({'|'.join(map(re.escape, tokens))})")

    def _slow_ids(self, texts: list[str]) -> list[list[int]]:
        return [[token.id for token in self.cut(text)] for text in texts]


def _encoded_tokens(tokens: Iterable[Token]) -> types.Encoded:
    table = np.array(list(tokens), np.int32).reshape(-1, 4)
    return types.Encoded(table[:, 0].copy(), table[:, 1:3].copy(), table[:, 3].copy())
