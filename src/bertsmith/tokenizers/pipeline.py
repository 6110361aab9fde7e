"""Any tokenizer.json, run unchanged by the tokenizers library: for rules that are not those of a trainable kind."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import tokenizers

from bertsmith import types
from bertsmith.errors import DataError
from bertsmith.tokenizers import folder, sentencepiece
from bertsmith.tokenizers.folder import TokenizerFolder
from bertsmith.tokenizers.pretokenization import WHOLE_TEXT
from bertsmith.tokenizers.special_tokens import CLS_KEYS, SpecialTokens, register_special_tokens
from bertsmith.tokenizers.tokenizer import Tokenizer

# Spellings of special tokens that a folder does not name, by role.
USUAL = {"padding": ("[PAD]", "<pad>"), "unknown": ("[UNK]", "<unk>"), "mask": ("[MASK]", "<mask>")}
KEPT = ("bos_token", "eos_token", "padding_side", "clean_up_tokenization_spaces", "model_input_names")
PROBES = ("a", "A", "1", "0")
IGNORED = ("trim_offsets", "add_prefix_space")  # only offsets; a setting of tokenizer_config.json

# Steps and values of normalizers that settings of BertTokenizer and AlbertTokenizer declare.
DECLARED = ("NFKD", "StripAccents", "Lowercase", "lowercase", "strip_accents", "handle_chinese_chars")


class Pipeline(Tokenizer):
    """The pipeline of a tokenizer.json with the frame of its post-processor."""

    kind = "tokenizer.json"
    transformers_classes = ("PreTrainedTokenizerFast",)  # runs tokenizer.json as it is, in every version
    special_token_keys = CLS_KEYS
    default_chunker = WHOLE_TEXT

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        special_tokens: SpecialTokens,
        max_length: int = folder.MAX_LENGTH,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.settings = dict(settings or {})  # other entries of tokenizer_config.json
        super().__init__(backend, special_tokens=special_tokens, max_length=max_length)

    @classmethod
    def from_folder(cls, contents: TokenizerFolder) -> Pipeline:
        if contents.lowercase is not None:
            raise DataError(
                f"{contents.path}: its tokenizer.json has rules of its own: import it without --cased/--uncased"
            )
        return cls.of_backend(parse(contents), contents)

    @classmethod
    def of_backend(cls, backend: tokenizers.Tokenizer, contents: TokenizerFolder) -> Pipeline:
        """A backend with its frame, and the names of its special tokens in a folder."""
        own = backend.get_added_tokens_decoder()
        known = {token.content for token in own.values()}
        added = [*own.items(), *(one for one in contents.added() if one[1].content not in known)]
        special_tokens = _special_tokens(backend, contents)
        register_special_tokens(backend, special_tokens, added)
        settings = {key: contents.config[key] for key in KEPT if key in contents.config}
        return cls(backend, special_tokens=special_tokens, max_length=contents.max_length(), settings=settings)

    def build_frame(self) -> types.Frame:
        return frame_of(self.backend)

    def rules(self) -> dict[str, Any]:
        definition = json.loads(self.backend.to_str())
        return {name: definition[name] for name in ("normalizer", "pre_tokenizer", "model")}

    def files(self) -> dict[str, bytes]:
        roles = self.special_tokens.roles()
        named = {key: roles[role] for role, key in self.special_token_keys.items() if role in roles}
        inputs = ["input_ids", *(["token_type_ids"] if any(self.build_frame().pair_segments) else []), "attention_mask"]
        state = _state(self.backend.pre_tokenizer)
        prefix = {"add_prefix_space": state["add_prefix_space"]} if "add_prefix_space" in state else {}
        settings = {"tokenizer_class": self.transformers_classes[0], "model_input_names": inputs} | self.settings
        return {
            folder.CONFIG: folder.json_bytes(settings | prefix | named | {"model_max_length": self.max_length}),
            folder.SPECIAL_TOKENS_MAP: folder.json_bytes(named),
            folder.DEFINITION: self.backend.to_str(pretty=True).encode() + b"\n",
        }

    def _encode_uncached(self, texts: list[str]) -> list[list[int]]:
        return [encoding.ids for encoding in self.backend.encode_batch(texts, add_special_tokens=False)]

    def __reduce__(self) -> tuple[Any, ...]:
        options: dict[str, Any] = {
            "special_tokens": self.special_tokens,
            "max_length": self.max_length,
            "settings": self.settings,
        }
        return partial(type(self), **options), (self.backend,)


def exact_tokenizer(contents: TokenizerFolder, kind: type[Tokenizer] | None, *, named: bool) -> Tokenizer:
    """The tokenizer of a folder: of a kind, if that has the rules of tokenizer.json, else as a pipeline.

    `named`: the folder names a transformers class with the rules of `kind`.
    """
    if not contents.definition:
        return Pipeline.of_backend(_without_definition(contents), contents)
    theirs = parse(contents)
    notes = list(contents.notes)
    if kind is not None:
        try:
            tokenizer = kind.from_folder(contents)
        except DataError as error:
            reason = str(error)
        else:
            different = differences(tokenizer, theirs)
            if named:
                different -= _replaced_by_the_class(tokenizer, theirs, different, contents)
            if not different:
                return tokenizer
            reason = f"its {' and '.join(sorted(different))} is not that of {contents.class_name}"
        if named:
            notes.append(f"{folder.DEFINITION} is used as it is, as by transformers 4: {reason}")
    contents.notes[:] = notes
    return Pipeline.from_folder(contents)


def _replaced_by_the_class(
    tokenizer: Tokenizer, theirs: tokenizers.Tokenizer, different: set[str], contents: TokenizerFolder
) -> set[str]:
    """The sections that transformers builds from the class that a folder names, whatever its tokenizer.json has."""
    replaced = set()
    if "normalizer" in different and _undeclared(tokenizer.backend) == _undeclared(theirs):
        replaced.add("normalizer")
        contents.notes.append(
            f"the settings of {contents.class_name} replace the normalizer of {folder.DEFINITION}, as by transformers"
        )
    if "post_processor" in different and frame_of(theirs).single == ("a",):
        replaced.add("post_processor")
        contents.notes.append(
            f"texts get the special tokens of {contents.class_name}, as by transformers 5, although "
            f"{folder.DEFINITION} adds none"
        )
    return replaced


def _undeclared(backend: tokenizers.Tokenizer) -> Any:
    """The normalizer without what tokenizer_config.json may declare."""
    state = _state(backend.normalizer)
    steps = [step for step in state.get("normalizers", []) if step["type"] not in DECLARED]
    return steps if "normalizers" in state else {key: value for key, value in state.items() if key not in DECLARED}


def _without_definition(contents: TokenizerFolder) -> tokenizers.Tokenizer:
    name = contents.class_name
    if name in ("", "XLMRobertaTokenizer") and contents.has(sentencepiece.XLM_ROBERTA_MODEL):
        return sentencepiece.xlm_roberta(contents)
    if not name:
        raise DataError(f"this folder is not a tokenizer: it has no {folder.DEFINITION}, vocab.txt or vocab.json")
    raise DataError(
        f"its tokenizer class {name} has rules of its own and there is no {folder.DEFINITION}: write one with "
        "transformers, `AutoTokenizer.from_pretrained(folder).save_pretrained(other_folder)`, and use that folder"
    )


def parse(contents: TokenizerFolder) -> tokenizers.Tokenizer:
    """The backend of a folder's tokenizer.json, without truncation and padding."""
    path = contents.file(folder.DEFINITION)
    normalizer = contents.section("normalizer")
    try:
        for step in [normalizer, *(normalizer.get("normalizers") or [])]:
            if step.get("type") == "Precompiled":
                sentencepiece.check_characters_map(base64.b64decode(step["precompiled_charsmap"]))
        backend = tokenizers.Tokenizer.from_str(folder.read_text(path))
    except DataError:
        raise
    except Exception as error:  # the tokenizers library has no exception class of its own
        raise DataError(f"{path} cannot be read by the tokenizers library: {str(error)[:200]}") from error
    for entry in contents.definition.get("added_tokens") or []:
        if backend.token_to_id(entry["content"]) != entry["id"]:
            raise DataError(f"{path}: added token {entry['content']!r} has id {entry['id']}, which is not the next id")
    backend.no_truncation()
    backend.no_padding()
    return backend


def frame_of(backend: tokenizers.Tokenizer) -> types.Frame:
    """The special tokens that a post-processor sets around one and two texts, read off the encoding of a text."""

    def found(texts: Iterable[str]) -> str | None:
        return next((text for text in texts if len(backend.encode(text, add_special_tokens=False))), None)

    text = found(PROBES) or found(sorted(backend.get_vocab(with_added_tokens=False))[:1000])
    if text is None:
        raise DataError("its tokenizer.json encodes no text: none of its tokens was found in a text")
    single, segments = _slots(backend.encode(text))
    pair, pair_segments = _slots(backend.encode(text, text))
    if any(segments) or not {"a", "b"} <= set(pair) or any(pair.count(slot) > 1 for slot in ("a", "b")):
        raise DataError("the post_processor of its tokenizer.json has another frame than `[CLS] a [SEP] b [SEP]`")
    return types.Frame(single, pair, pair_segments if any(pair_segments) else ())


def _slots(encoding: tokenizers.Encoding) -> tuple[tuple[int | types.Slot, ...], tuple[int, ...]]:
    """The parts of a frame and their segments; the tokens of a text are one part."""
    slots: list[int | types.Slot] = []
    segments: list[int] = []
    names: tuple[types.Slot, ...] = ("a", "b")
    for number, sequence, segment in zip(encoding.ids, encoding.sequence_ids, encoding.type_ids, strict=True):
        slot = number if sequence is None else names[sequence]
        if isinstance(slot, int) or slot not in slots[-1:] or segment != segments[-1]:
            slots.append(slot)
            segments.append(segment)
    return tuple(slots), tuple(segments)


def _special_tokens(backend: tokenizers.Tokenizer, contents: TokenizerFolder) -> SpecialTokens:
    """Start, separator and end of the frame; the others as the folder names them, or in their usual spelling."""
    layout = frame_of(backend)
    specials = [None if isinstance(slot, str) else backend.id_to_token(slot) for slot in layout.pair]
    between = specials[layout.pair.index("a") + 1 : layout.pair.index("b")]
    roles = {"start": specials[0], "separator": next(iter(between), None), "end": specials[-1]}
    for role, spellings in USUAL.items():
        usual = (token for token in spellings if backend.token_to_id(token) is not None)
        roles[role] = contents.named_token(CLS_KEYS[role]) or next(usual, None)
    if roles["padding"] is None:
        raise DataError(f"its tokenizer has no padding token: name a token of it as pad_token in {folder.CONFIG}")
    return SpecialTokens(**{role: token for role, token in roles.items() if token is not None})


def differences(tokenizer: Tokenizer, theirs: tokenizers.Tokenizer) -> set[str]:
    """The sections of a tokenizer.json whose rules are not those of a tokenizer that was built from it."""
    ours = tokenizer.backend
    found = {name for name in ("normalizer", "pre_tokenizer") if not _same(getattr(ours, name), getattr(theirs, name))}
    options = {name for name in dir(theirs.model) if name.endswith(("prefix", "suffix", "word", "fallback", "dropout"))}
    options |= {"ignore_merges"} & set(dir(theirs.model))
    values = [[getattr(model, name, None) or None for name in sorted(options)] for model in (ours.model, theirs.model)]
    if type(ours.model) is not type(theirs.model) or values[0] != values[1]:
        found.add("model")
    layout, own = frame_of(theirs), tokenizer.frame_ids
    if layout != types.Frame(own.single, own.pair, own.pair_segments if any(own.pair_segments) else ()):
        found.add("post_processor")
    return found


def _same(ours: Any, theirs: Any) -> bool:
    return {**_state(ours), **dict.fromkeys(IGNORED)} == {**_state(theirs), **dict.fromkeys(IGNORED)}


def _state(component: Any) -> dict[str, Any]:
    """The section of tokenizer.json of a component."""
    state: dict[str, Any] = json.loads(component.__getstate__()) if component is not None else {}
    if state.get("type") == "BertNormalizer" and state["strip_accents"] is None:
        state["strip_accents"] = state["lowercase"]
    return state
