"""Encoding of consecutive texts with a recurrent state that is carried from text to text, as the original ELMo does.

Predictors are stateless otherwise: the vectors of a text do not depend on the texts before it.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertsmith.data.collate import collate
from bertsmith.errors import BertsmithError
from bertsmith.inference.forward import TextModel
from bertsmith.inference.pipelines import TextOrWords, text_list
from bertsmith.types import Encoding

State = tuple[Tensor, ...]  # by layer, tensors [rows, ...]


class StatefulEncoder:
    """The result of `Predictor.stateful`: text n of a call continues text n of the calls before. Not thread-safe."""

    def __init__(self, model: TextModel, *, device: str, autocast: bool) -> None:
        if not model.model.encoder.stateful:
            raise BertsmithError("this encoder has no state: only recurrent ones (elmo, awd_lstm) carry one")
        self._model, self._device, self._autocast = model, device, autocast
        self._state: State | None = None

    def reset(self) -> None:
        """Forgets all texts: the next call starts with zeros, as a new encoder does."""
        self._state = None

    def encode(self, texts: Iterable[TextOrWords]) -> list[NDArray[np.float32]]:
        """The outputs of all layers at all tokens of each text [layers + 1, L, D], special tokens included.

        A text may be a list of words. With the tokenizer of published ELMo models each is one token, and so is each
        part of a string between white space.
        Fewer texts than before continue the first rows and leave the others as they are; more start with zeros. The
        state of a row is that after its last token.
        """
        rows = self._model.frame_ids(text_list(texts), max_length=self._model.max_length)
        if not rows:
            return []
        lengths = [len(row) for row in rows]
        batch = collate(rows, length=max(lengths), padding_id=self._model.tokenizer.padding_id).to(self._device)
        if self._state is not None:  # a text that does not start at position 0 continues the state
            batch = batch.replace(position_ids=batch.position_ids + 1)
        with torch.inference_mode(), torch.autocast(self._device, torch.bfloat16, enabled=self._autocast):
            encoding: Encoding = self._model.model.encoder(
                batch,
                self._rows(len(rows)),
                pool=False,
                return_layers=True,
            )
        assert encoding.state is not None, "the encoder is stateful"
        self._update(encoding.state)
        layers = torch.stack([layer.float() for layer in encoding.layers])
        values = layers.view(len(layers), len(rows), max(lengths), -1).cpu().numpy()
        return [values[:, number, :length].copy() for number, length in enumerate(lengths)]

    def _rows(self, count: int) -> State | None:
        """The state of the first rows, with zeros for new ones."""
        if self._state is None:
            return None
        missing = max(count - len(self._state[0]), 0)
        return tuple(torch.cat((part, part.new_zeros(missing, *part.shape[1:])))[:count] for part in self._state)

    def _update(self, state: State) -> None:
        before = self._state or state
        self._state = tuple(torch.cat((new, old[len(new) :])) for new, old in zip(state, before, strict=True))
