"""The tokenizer contract: encode, frame, decode, fingerprint, save and load; and the registry of tokenizer kinds.

A `tokenizers.Tokenizer` (the backend) does the work. A kind defines the backend's rules, its special tokens and the
files that describe it. Kinds whose rules are written in Python derive from `PythonTokenizer`.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol, Self, TypedDict, Unpack

import numpy as np
import tokenizers
from numpy.typing import ArrayLike, NDArray

from bertsmith import config, types
from bertsmith.errors import BertsmithError, ConfigError, DataError
from bertsmith.system.durable import Disk
from bertsmith.tokenizers import folder
from bertsmith.tokenizers.folder import MAX_LENGTH, Merges, TokenizerFolder
from bertsmith.tokenizers.pretokenization import (
    WHOLE_TEXT,
    ChunkCache,
    Chunker,
    Ids,
    Token,
    encode_chunks,
    from_tokens,
    replace_surrogates,
)
from bertsmith.tokenizers.special_tokens import (
    AddedTokens,
    FrameTemplate,
    SpecialTokens,
    frame_texts,
    register_special_tokens,
)
from bertsmith.tokenizers.spelling import spell_tokens
from bertsmith.tokenizers.training import WordSplitter

PACKAGE = "bertsmith.tokenizers"
# what a copy for an encoder or a target text changes, besides what `__reduce__` of its kind keeps
ADAPTED = ("spells", "spells_case", "open_vocabulary", "frame_ids", "notes", "target")


class RoleId:
    """The id of the special token with a role; an error if the tokenizer has no such token."""

    def __init__(self, role: str) -> None:
        self.role = role

    def __get__(self, tokenizer: Tokenizer, _: type[Tokenizer]) -> int:
        roles = tokenizer._roles
        if self.role not in roles:
            raise BertsmithError(f"this {tokenizer.kind} tokenizer has no {self.role} token; it has {', '.join(roles)}")
        return roles[self.role]


class BuildOptions(TypedDict, total=False):
    """What a folder may change besides the vocabulary and the rules."""

    special_tokens: SpecialTokens
    max_length: int
    added: AddedTokens


class Tokenizer:
    """A backend and its special tokens. Immutable: threads and processes may share one."""

    kind: ClassVar[str]
    transformers_classes: ClassVar[tuple[str, ...]] = ()  # class names in transformers, without "Fast"
    default_special_tokens: ClassVar[SpecialTokens]
    special_token_keys: ClassVar[Mapping[str, str]]  # role -> key of tokenizer_config.json
    template: ClassVar[FrameTemplate] = FrameTemplate()
    default_chunker: ClassVar[Chunker] = Chunker()
    cache_limit: int = 400_000  # chunks that `encode_ids` caches
    spells: bool = False  # encoded texts have the spelling of each token, for encoders that read characters
    spells_case: bool = False  # as it is written, although the vocabulary is lower-cased
    spelled_ids: Any = None  # `encode_ids` with the spelling of unknown words, where tokens are words
    splits_at_white_space: bool = False  # only there: each word of a text that is tokenized already is one token
    open_vocabulary: bool = False  # an encoder reads nothing but spelling: no word is unknown to it
    notes: tuple[str, ...] = ()  # what users should know about the folder that it was loaded from
    target: Tokenizer | None = None  # of the target texts of a translation, where these have a vocabulary of their own
    unknown_id: int  #: -1 for vocabularies without an unknown token, such as most byte-level ones
    padding_id = RoleId("padding")
    start_id = RoleId("start")
    separator_id = RoleId("separator")
    end_id = RoleId("end")
    mask_id = RoleId("mask")

    def __init__(
        self, backend: tokenizers.Tokenizer, *, special_tokens: SpecialTokens, max_length: int = MAX_LENGTH
    ) -> None:
        backend.encode_special_tokens = True  # spellings of special tokens in a text are ordinary text
        self.backend, self.special_tokens = backend, special_tokens
        self.max_length = max_length  # `model_max_length` in the folder
        self._tokens = folder.tokens_in_id_order(backend.get_vocab(), f"this {self.kind} vocabulary")
        self._ids = {token: number for number, token in enumerate(self._tokens)}
        self._roles = {role: self._ids[token] for role, token in special_tokens.roles().items()}
        added = backend.get_added_tokens_decoder().items()
        self.special_ids: frozenset[int] = frozenset(number for number, token in added if token.special)
        self.unknown_id = self._roles.get("unknown", -1)
        self.unknown_ids = frozenset({self.unknown_id} - {-1})  # all tokens of unknown words
        self._ordinary_added = [token for _, token in added if not token.special]
        self.frame_ids: types.Frame = self.build_frame()
        self._cache = ChunkCache(self._encode_uncached, self.chunker(), id_dtype=self.id_dtype, limit=self.cache_limit)

    @classmethod
    def from_backend(cls, backend: tokenizers.Tokenizer, **options: Unpack[BuildOptions]) -> Self:
        """From a backend that has no special tokens and no frame yet."""
        special_tokens = options.get("special_tokens", cls.default_special_tokens)
        register_special_tokens(backend, special_tokens, options.get("added", ()))
        backend.post_processor = cls.template.post_processor(special_tokens, backend)
        return cls(backend, special_tokens=special_tokens, max_length=options.get("max_length", MAX_LENGTH))

    @classmethod
    def folder_options(cls, contents: TokenizerFolder) -> BuildOptions:
        """All options, as a folder has them."""
        special_tokens = contents.special_tokens(cls.special_token_keys, cls.default_special_tokens)
        return {"special_tokens": special_tokens, "max_length": contents.max_length(), "added": contents.added()}

    def build_frame(self) -> types.Frame:
        """The special tokens around texts."""
        return self.template.build(self._roles)

    def rules(self) -> dict[str, Any]:
        """Everything besides vocabulary, special tokens and frame that determines the ids, as plain JSON values."""
        raise NotImplementedError

    def transformers_config(self) -> dict[str, Any]:
        """The entries of tokenizer_config.json from which transformers builds the same rules."""
        return {}

    def vocabulary_files(self) -> dict[str, bytes]:
        """Files of this kind besides the JSON files, such as vocab.txt."""
        return {}

    def is_continuation(self) -> NDArray[np.bool_] | None:
        """By id, whether a token continues the previous word; None where tokens do not show it."""
        return None

    @classmethod
    def from_folder(cls, contents: TokenizerFolder) -> Self:
        """The tokenizer of a folder of this kind."""
        raise NotImplementedError

    @classmethod
    def recognises(cls, contents: TokenizerFolder) -> bool:
        """Whether a folder that names none of `transformers_classes` is of this kind."""
        return False

    def encode(self, text: str, *, parse_special_tokens: bool = False) -> types.Encoded:
        """Ids, offsets into the original text and word indices, without special tokens around the text."""
        backend = self._parsing_backend if parse_special_tokens else self.backend
        return self.spelled(text, _encoded(backend.encode(replace_surrogates(text), add_special_tokens=False)))

    def encode_batch(self, texts: Sequence[str]) -> list[types.Encoded]:
        """`encode` of each text, on all cores."""
        encodings = self.backend.encode_batch([replace_surrogates(text) for text in texts], add_special_tokens=False)
        return [self.spelled(text, _encoded(encoding)) for text, encoding in zip(texts, encodings, strict=True)]

    def encode_words(self, text: str, spans: Iterable[tuple[int, int]]) -> types.Encoded:
        """`encode` of a text with given words; one that splits at white space only makes each of them one token."""
        return self.encode(text)

    def spelled(self, text: str, encoded: types.Encoded) -> types.Encoded:
        """The same with the characters of each token, if this tokenizer spells; lower-cased if the vocabulary is."""
        lowercase = self.rules().get("lowercase", False) and not self.spells_case
        return spell_tokens(text, encoded, lowercase=lowercase) if self.spells else encoded

    def encode_ids(self, texts: Sequence[str]) -> tuple[Ids, NDArray[np.int64]]:
        """The ids of all texts, concatenated [T], and the number of ids of each text: the fast path, for shards."""
        return self._cache(texts)

    def frame(self, a: types.Encoded, b: types.Encoded | None = None, *, max_length: int) -> types.Row:
        """One or two texts with their special tokens, truncated to at most `max_length` tokens."""
        return frame_texts(self.frame_ids, a, b, max_length=max_length)

    def decode(self, ids: ArrayLike, *, skip_special_tokens: bool = True) -> str:
        """The text of these ids, as far as normalisation preserved it."""
        numbers = np.asarray(ids, dtype=np.int64).tolist()
        for number in numbers:
            self.id_to_token(number)
        return self.backend.decode(numbers, skip_special_tokens=skip_special_tokens)

    def is_unknown(self, ids: NDArray[Any]) -> NDArray[np.bool_]:
        """Whether each id is one of `unknown_ids`."""
        return np.isin(ids, list(self.unknown_ids))

    @property
    def vocab_size(self) -> int:
        return len(self._tokens)

    @property
    def id_dtype(self) -> np.dtype[Any]:
        """The smallest dtype for every id."""
        return np.dtype(np.uint16 if self.vocab_size <= 1 << 16 else np.uint32)

    def tokens(self) -> list[str]:
        """The vocabulary, by id."""
        return list(self._tokens)

    def id_to_token(self, number: int) -> str:
        if not 0 <= number < len(self._tokens):
            raise BertsmithError(f"id {number} is outside this vocabulary of {len(self._tokens)} tokens")
        return self._tokens[number]

    def token_to_id(self, token: str) -> int | None:
        return self._ids.get(token)

    @cached_property
    def fingerprint(self) -> str:
        """16 hexadecimal digits, equal for tokenizers that produce the same ids and frames for every text."""
        layout = self.build_frame()  # `frame_ids` may be that of an encoder
        added = [[token.content, token.single_word, token.lstrip, token.rstrip] for token in self._ordinary_added]
        frame = [layout.single, layout.pair, layout.pair_segments]
        form = {"kind": self.kind, "rules": self.rules(), "tokens": self._tokens, "added": added, "frame": frame}
        form |= {} if self.target is None else {"target": self.target.fingerprint}
        text = json.dumps(form | {"specials": self.special_tokens.roles()}, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def files(self) -> dict[str, bytes]:
        """The files of a transformers tokenizer folder, by name; deterministic."""
        named = {key: self.special_tokens.roles()[role] for role, key in self.special_token_keys.items()}
        settings = {"tokenizer_class": self.transformers_classes[0]} | self.transformers_config() | named
        target = self.target.files().items() if self.target else ()
        return {
            folder.CONFIG: folder.json_bytes(settings | {"model_max_length": self.max_length}),
            folder.SPECIAL_TOKENS_MAP: folder.json_bytes(named),
            folder.DEFINITION: self.backend.to_str(pretty=True).encode() + b"\n",
            **self.vocabulary_files(),
            **{f"{folder.TARGET}{name}": content for name, content in target},
        }

    def save(self, path: str | Path, disk: Disk | None = None) -> None:
        """Writes `files()` into a folder, which is created if necessary."""
        disk = disk or Disk()
        disk.make_folder(path)
        for name, content in self.files().items():
            disk.write_file(Path(path) / name, [content])

    def with_target(self, target: Tokenizer) -> Self:
        """The tokenizer of source texts whose target texts have a vocabulary of their own."""
        roles = [{role: own for role, own in one._roles.items() if role != "mask"} for one in (self, target)]
        if (self.kind, self.frame_ids, roles[0]) != (target.kind, target.frame_ids, roles[1]):
            found = f"{self.kind} and {target.kind}"
            raise ConfigError(f"source and target need tokenizers of the same kind and special tokens, found {found}")
        other = object.__new__(type(self))  # subclasses have constructors of their own
        vars(other).update(vars(self) | {"target": target})
        vars(other).pop("fingerprint", None)  # which is cached
        return other

    def chunker(self) -> Chunker:
        """How texts are split into independent chunks."""
        # An added token may contain white space or absorb the characters around it: then texts are not split.
        return WHOLE_TEXT if self._ordinary_added else self.default_chunker

    @cached_property
    def _parsing_backend(self) -> tokenizers.Tokenizer:
        """A second backend, because parsing special tokens is a mode of the backend and threads share it."""
        return tokenizers.Tokenizer.from_str(self.backend.to_str())

    @cached_property
    def _special_pattern(self) -> re.Pattern[str]:
        tokens = sorted(self.special_tokens.tokens(), key=lambda token: (-len(token), token))
        return re.compile(f"({'|'.join(map(re.escape, tokens))})")

    def encode_in_python(
        self, tokenize: Callable[[str], Iterable[Token]], text: str, *, parse_special_tokens: bool
    ) -> types.Encoded:
        """`encode` of a kind whose rule is a function of texts without lone surrogates; words are counted from 0."""
        text = replace_surrogates(text)
        if not parse_special_tokens:
            return from_tokens(tokenize(text))
        encoded: list[Token] = []
        start = 0
        for index, part in enumerate(self._special_pattern.split(text)):  # every second part is a special token
            tokens = [Token(self._ids[part], 0, len(part), 0)] if index % 2 else tokenize(part)
            word = encoded[-1].word + 1 if encoded else 0
            encoded += [Token(number, start + begin, start + end, word + own) for number, begin, end, own in tokens]
            start += len(part)
        return from_tokens(encoded)

    def _encode_uncached(self, texts: list[str]) -> list[list[int]]:
        return encode_chunks(self.backend, texts)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return *self.__reduce__(), {name: value for name, value in vars(self).items() if name in ADAPTED}

    def __reduce__(self) -> tuple[Any, ...]:
        rebuild = partial(type(self), special_tokens=self.special_tokens, max_length=self.max_length)
        return rebuild, (self.backend,)


def _encoded(encoding: tokenizers.Encoding) -> types.Encoded:
    words = np.array(encoding.word_ids, np.int32)
    begins = np.diff(words, prepend=words[:1]) != 0  # words without tokens leave gaps in the numbering
    return types.Encoded(
        ids=np.array(encoding.ids, np.int32),
        offsets=np.array(encoding.offsets, np.int32).reshape(-1, 2),
        words=np.cumsum(begins, dtype=np.int32),
    )


class MergesTokenizer(Tokenizer):
    """A byte-pair encoding."""

    @cached_property
    def merges(self) -> Merges:
        """The merges, in order of application."""
        return folder.backend_merges(self.backend)

    def vocabulary_files(self) -> dict[str, bytes]:
        ids = self.backend.get_vocab(with_added_tokens=False)
        ordered = {token: ids[token] for token in folder.tokens_in_id_order(ids, "the vocabulary")}
        lines = ["#version: 0.2", *(f"{left} {right}" for left, right in self.merges)]
        return {
            folder.BPE_VOCABULARY: json.dumps(ordered, ensure_ascii=False).encode(),
            folder.MERGES: folder.vocabulary_bytes(lines),
        }


class TokenizerConfig(Protocol):
    """The `Config` of a kind: how a vocabulary is trained from word counts."""

    def word_splitter(self) -> WordSplitter:
        """Splits texts into the words that are counted."""

    def train(self, counts: dict[str, int], *, vocab_size: int) -> Tokenizer:
        """A tokenizer of at most `vocab_size` tokens; may empty `counts` to save memory."""


class Kind(NamedTuple):
    """A kind of tokenizer: the classes of one module of this package."""

    config: type[TokenizerConfig]
    tokenizer: type[Tokenizer]


def kinds() -> list[str]:
    """The names of all kinds: the modules of this package that have a `Config`."""
    return config.kinds(PACKAGE)


def kind(name: str) -> Kind:
    """The kind with that name."""
    module = config.find_kind(PACKAGE, name)
    own = [value for value in vars(module).values() if isinstance(value, type) and value.__module__ == module.__name__]
    (tokenizer,) = [value for value in own if issubclass(value, Tokenizer)]
    return Kind(module.Config, tokenizer)


def load(path: str | Path, *, lowercase: bool | None = None) -> Tokenizer:
    """The tokenizer of a folder of any kind, written by bertsmith or by transformers.

    `lowercase`: instead of the folder's setting. `notes` of the tokenizer say what is not evident from its files.
    """
    tokenizer = _load(TokenizerFolder.open(path, lowercase=lowercase))
    if not Path(path, f"{folder.TARGET}{folder.CONFIG}").is_file():
        return tokenizer
    return tokenizer.with_target(_load(TokenizerFolder.open(path, lowercase=lowercase, prefix=folder.TARGET)))


def _load(contents: TokenizerFolder) -> Tokenizer:
    path, lowercase = contents.path, contents.lowercase
    contents.refuse_own_code()
    known = [kind(name).tokenizer for name in kinds()]
    named = [tokenizer for tokenizer in known if contents.class_name in tokenizer.transformers_classes]
    suitable = named or [tokenizer for tokenizer in known if tokenizer.recognises(contents)]
    try:
        tokenizer = _from_folder(contents, suitable[0] if suitable else None, named=bool(named))
    except DataError as error:
        raise error if str(path) in str(error) else DataError(f"{path}: {error}") from error
    except Exception as error:  # the tokenizers library raises bare ones for files that it cannot parse
        raise DataError(f"{path}: its files are not in the format of transformers ({error!r})") from error
    if lowercase is not None and tokenizer.rules().get("lowercase", False) != lowercase:
        wanted = "uncased" if lowercase else "cased"
        raise DataError(f"{path}: this {tokenizer.kind} tokenizer cannot be {wanted}: import it without --{wanted}")
    if contents.config.get("truncation_side") == "left":
        contents.notes.append("truncation_side=left is ignored: long texts lose their last tokens")
    tokenizer.notes = tuple(contents.notes)
    return tokenizer


def _from_folder(contents: TokenizerFolder, kind: type[Tokenizer] | None, *, named: bool) -> Tokenizer:
    """A tokenizer of that kind, if its rules are those of the folder; else the folder's tokenizer.json as it is."""
    if kind and not contents.definition:
        return kind.from_folder(contents)
    pipeline = importlib.import_module(f"{PACKAGE}.pipeline")  # found by name, like the kinds: it imports this module
    tokenizer: Tokenizer = pipeline.exact_tokenizer(contents, kind, named=named)
    return tokenizer
