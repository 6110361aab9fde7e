"""Text generation with causal language models: `Predictor.generate` and `generate_stream`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Unpack, overload

from bertsmith.encoders.encoder import Encoder
from bertsmith.encoders.transformer_encoder import TransformerEncoder
from bertsmith.errors import BertsmithError
from bertsmith.inference.deadline import current_deadline
from bertsmith.inference.decoding import STEPS, DecodeInput, DecodeQuery, Decoder, Step
from bertsmith.inference.engine import Engine
from bertsmith.inference.forward import TextModel, ids_only
from bertsmith.inference.pipelines import string_list
from bertsmith.inference.predictions import Generated, Predictions
from bertsmith.inference.sampling import GenerationOptions, GenerationSettings
from bertsmith.model_io.model import Model
from bertsmith.tokenizers.special_tokens import frame_texts
from bertsmith.tokenizers.tokenizer import Tokenizer
from bertsmith.types import Frame, Row

NEW_TOKENS = 64  # by default, if they fit
CACHE_TOKENS = {"cuda": 131_072}  # of one batch, by device: 12 layers of width 768 take 36 KB per token in bfloat16
DEFAULT_CACHE_TOKENS = 8192
CONTEXT = 8  # tokens of the prompt that are decoded with the new ones, for the space between them
# Text that the next token may change: bytes that are not a character yet, and parts of a Hangul syllable
INCOMPLETE = re.compile("[\ufffd\u1100-\u11ff]+$")


@dataclass(frozen=True)
class Piece:
    """The next part of a generated text."""

    prompt: int  # index of the prompt
    sample: int  # index among the texts of the prompt
    text: str
    result: Generated | None = None  # with the last part: the whole result


class GenerationPipeline(TextModel):
    """Generation with a causal language model, such as GPT."""

    device: str

    @overload
    def generate(self, prompts: str, **options: Unpack[GenerationOptions]) -> Any: ...
    @overload
    def generate(self, prompts: Iterable[str], **options: Unpack[GenerationOptions]) -> Predictions[Any]: ...

    def generate(self, prompts: str | Iterable[str], **options: Unpack[GenerationOptions]) -> Any:
        """Continues each prompt: `{"text", "finish_reason", "tokens"}`; `text` follows the prompt, without it.

        `finish_reason` is `length` (max_new_tokens are generated), `stop` (a stop string follows; it is not part of the
        text) or `end` (the model has generated its end token). A string gives one result and a list a list of results;
        with `samples` over 1, each is a list.

        `max_new_tokens`: by default up to 64, as far as they fit into the model's positions. `temperature`: 0, the
        default, always takes the most likely token; otherwise tokens are sampled, from the `top_k` most likely ones and
        from the most likely ones whose probabilities sum to `top_p`. `repetition_penalty`: over 1, tokens of the text
        so far are less likely. `stop`: a string or several. `samples`: texts for each prompt. `seed`: of sampling; a
        text depends on its prompt, the options and the seed, but not on the other prompts. `top_logprobs`: adds
        `logprobs`, for each token its log probability and the most likely tokens at its position.

        >>> model.generate("The smith", max_new_tokens=20)["text"]
        """
        settings, single = GenerationSettings(**options), isinstance(prompts, str)  # type: ignore[arg-type]
        texts = string_list([prompts] if single else prompts)
        results: list[list[Any]] = [[None] * settings.samples for _ in texts]
        for piece in self.generate_pieces(texts, settings):
            if piece.result is not None:
                results[piece.prompt][piece.sample] = piece.result
        if settings.samples == 1:
            return results[0][0] if single else Predictions(one for (one,) in results)
        lists = [Predictions(some) for some in results]
        return lists[0] if single else Predictions(lists, group="prompt")

    def generate_stream(self, prompt: str, **options: Unpack[GenerationOptions]) -> Iterator[str]:
        """The parts of one generated text as soon as they are certain; options as in `generate`, but one sample.

        No part ends within a character, and none contains the beginning of a stop string.

        >>> for part in model.generate_stream("The smith"):
        ...     print(part, end="", flush=True)
        """
        settings = GenerationSettings(**options)  # type: ignore[arg-type]
        if settings.samples > 1:
            raise BertsmithError(f"samples={settings.samples}: a stream has one text; call generate for several")
        pieces = self.generate_pieces(string_list([prompt]), settings)  # checked now, not at the first part
        return (piece.text for piece in pieces if piece.text)

    def generate_pieces(self, prompts: Sequence[str], settings: GenerationSettings) -> Iterator[Piece]:
        """The parts of all texts, a few tokens at a time; the inputs are checked at once."""
        check_causal(self.model)
        if not isinstance(self.model.encoder, TransformerEncoder):
            raise BertsmithError("generation needs a Transformer with a key/value cache: use a model such as gpt/base")
        self.check_texts(*prompts)
        rows = [self._prompt_row(prompt, index, len(prompts)) for index, prompt in enumerate(prompts)]
        texts = [
            _Text(self.tokenizer, prompt, sample, row, settings, self._new_tokens(row, settings, prompt, len(prompts)))
            for prompt, row in enumerate(rows)
            for sample in range(settings.samples)
        ]
        current_deadline().check(sum(len(one.row) + one.new_tokens for one in texts))
        return self._pieces(texts, settings)

    def _pieces(self, texts: list[_Text], settings: GenerationSettings) -> Iterator[Piece]:
        size = len(self.model.encoder.token_embeddings)  # type: ignore[arg-type]
        banned = {*self.tokenizer.special_ids, *range(self.tokenizer.vocab_size, size)} - {end_id(self.tokenizer)}
        for batch in _batches(texts, CACHE_TOKENS.get(self.device, DEFAULT_CACHE_TOKENS)):
            engine = self.backend if isinstance(self.backend, Engine) else None
            tokens = len(batch) * max(len(one.row) + one.new_tokens for one in batch)
            with engine.reserve(tokens) if engine else nullcontext():
                decoder = Decoder(
                    self.model,
                    [one.row for one in batch],
                    settings,
                    new_tokens=[one.new_tokens for one in batch],
                    samples=[one.sample for one in batch],
                    banned=sorted(number for number in banned if number < size),
                )
                count = sum(len(one.row) for one in batch)
                while not all(one.finish_reason for one in batch):
                    current_deadline().check()
                    count += STEPS.get(self.device, 1) * len(batch)
                    (step,) = self.backend.run(DecodeQuery(decoder), [DecodeInput((), tokens=count)])
                    count = 0
                    for index, one in enumerate(batch):
                        if not one.finish_reason and (piece := one.update(step, index)):
                            yield piece

    def _prompt_row(self, prompt: str, index: int, count: int) -> Row:
        """The prompt after the special tokens that precede a text in pre-training."""
        ids, before = self.tokenizer.encode(prompt).ids, tokens_before(self.tokenizer, self.model.encoder)
        if not len(ids) and not before:
            start = self.tokenizer.special_tokens.roles().get("start")
            if start is None:
                name = "the prompt" if count == 1 else f"prompt {index + 1}"
                raise BertsmithError(f"{name} is empty, and this tokenizer has no start token: write at least one word")
            before = (self.tokenizer.start_id,)
        layout = Frame(single=(*before, "a"), pair=())
        return frame_texts(layout, ids_only(ids), None, max_length=len(before) + len(ids))

    def _new_tokens(self, row: Row, settings: GenerationSettings, index: int, count: int) -> int:
        wanted, space = settings.max_new_tokens, self.max_length - len(row)
        if space < (wanted or 1):
            name = "the prompt" if count == 1 else f"prompt {index + 1}"
            fits = f"at most {space} new tokens fit, not max_new_tokens={wanted}" if space > 0 else "shorten it"
            raise BertsmithError(f"{name} takes {len(row):,} of the model's {self.max_length:,} positions: {fits}")
        return min(NEW_TOKENS, space) if wanted is None else wanted


def tokens_before(tokenizer: Tokenizer, encoder: Encoder) -> tuple[int, ...]:
    """The special tokens before a text in pre-training."""
    frame = tokenizer.frame_ids.single
    return tuple(part for part in frame[: frame.index("a")] if isinstance(part, int)) if encoder.starts_texts else ()


def end_id(tokenizer: Tokenizer) -> int | None:
    """The token that follows a text in pre-training; None where texts have no end."""
    last = tokenizer.frame_ids.single[-1]
    return last if isinstance(last, int) else None


def check_causal(model: Model) -> None:
    """An error if a model is not a causal language model; it names what to use instead."""
    if "causal_lm" not in model.objectives:
        heads = ", ".join(model.objectives) or "none"
        instead = "; it predicts masked words with fill-mask" if model.head_for("fill-mask") else ""
        raise BertsmithError(
            f"this model has no causal_lm head (heads: {heads}){instead}: use a causal language model, such as one "
            "pre-trained with the recipe gpt/base"
        )
    if model.encoder.direction != "forward":
        raise BertsmithError("this encoder does not read texts from left to right only: use a model such as gpt/base")


def _batches(texts: Sequence[_Text], most: int) -> list[list[_Text]]:
    """Texts that are decoded together, prompts of similar length; each batch has a cache of at most `most` tokens."""
    batches: list[list[_Text]] = []
    length = 0
    for one in sorted(texts, key=lambda one: len(one.row)):
        length = max(length, len(one.row) + one.new_tokens)
        if not batches or (len(batches[-1]) + 1) * length > most:
            batches.append([])
            length = len(one.row) + one.new_tokens
        batches[-1].append(one)
    return batches


class _Text:
    """A text that is being generated."""

    def __init__(
        self, tokenizer: Tokenizer, prompt: int, sample: int, row: Row, settings: GenerationSettings, new_tokens: int
    ) -> None:
        self.tokenizer, self.settings = tokenizer, settings
        self.prompt, self.sample, self.row, self.new_tokens = prompt, sample, row, new_tokens
        self.finish_reason = ""
        self._sent = 0  # characters
        self._context = row.ids[-CONTEXT:].tolist()
        self._before = tokenizer.decode(self._context)

    def update(self, step: Step, index: int) -> Piece | None:
        """The text that is certain after a step and was not before it."""
        tokens: list[int] = step.tokens[index, : self.new_tokens].tolist()
        if len(tokens) == self.new_tokens:
            self.finish_reason = "length"
        end = end_id(self.tokenizer)
        if end in tokens:
            tokens, self.finish_reason = tokens[: tokens.index(end)], "end"
        text = self._decode(tokens)
        found = [start for start in map(text.find, self.settings.stop) if start >= 0]
        if found:
            self.finish_reason, text = "stop", text[: min(found)]
            while tokens and any(stop in self._decode(tokens[:-1]) for stop in self.settings.stop):
                tokens.pop()
        if not self.finish_reason:
            text = INCOMPLETE.sub("", text)
            text = text[: len(text) - _partial_stop(text, self.settings.stop)]
        elif not found:
            text = text.rstrip("\ufffd")
        part, self._sent = text[self._sent :], max(self._sent, len(text))
        if not self.finish_reason:
            return Piece(self.prompt, self.sample, part) if part else None
        return Piece(self.prompt, self.sample, part, self._result(text, tokens, step, index))

    def _decode(self, tokens: list[int]) -> str:
        whole = self.tokenizer.decode(self._context + tokens)
        return whole[len(self._before) :] if whole.startswith(self._before) else self.tokenizer.decode(tokens)

    def _result(self, text: str, tokens: list[int], step: Step, index: int) -> Generated:
        result: Generated = {"text": text, "finish_reason": self.finish_reason, "tokens": tokens}
        if self.settings.top_logprobs:
            top_ids, top_values = step.top_ids[index].tolist(), step.top_logprobs[index].tolist()
            result["logprobs"] = [
                {
                    **self._logprob(token, float(step.logprobs[index, position])),
                    "start": len(INCOMPLETE.sub("", self._decode(tokens[:position]))),
                    "top": [
                        self._logprob(other, value)
                        for other, value in zip(top_ids[position], top_values[position], strict=True)
                        if math.isfinite(value)
                    ],
                }
                for position, token in enumerate(tokens)
            ]
        return result

    def _logprob(self, token: int, logprob: float) -> dict[str, Any]:
        return {"token": token, "token_str": self.tokenizer.id_to_token(token), "logprob": logprob}


def _partial_stop(text: str, stops: Sequence[str]) -> int:
    """The length of the longest end of the text that a stop string may begin with."""
    sizes = (size for stop in stops for size in range(1, len(stop)) if text.endswith(stop[:size]))
    return max(sizes, default=0)
