"""Token classification (named entities, P-BERT §5.3), by softmax at each word or by a CRF over each sentence.

R selected tokens, T flat tokens, K classes, N texts, M words of the longest text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bertsmith.errors import ConfigError
from bertsmith.metrics.sequence_labelling import Scheme, allowed_transitions
from bertsmith.nn.crf import CRF, Allowed, LabelSequences
from bertsmith.nn.pooling import run_recurrent
from bertsmith.objectives.heads import LayersConfig, check_dropout, check_weights, default_names, weight_tensor
from bertsmith.objectives.objective import BuildContext, LabelledRows, Objective, SelectedRows, at_least_float32
from bertsmith.types import IGNORE_INDEX, Batch, Encoding, Loss, SequenceDecoder

STARTS = ".starts"  # suffix of the indices of tokens that begin a sentence


@dataclass(frozen=True, kw_only=True)
class Config(LayersConfig):
    """indices["tag"] [R] int64: the first token of each word; labels["tag"] [R] int64: its class, or IGNORE_INDEX."""

    labels: tuple[str, ...] = default_names(2)  # class names by class index; imported folders may repeat one
    dropout: float = 0.1  # on the vector of each word
    class_weights: tuple[float, ...] = ()  # of the losses of each class; fine-tuning takes balanced or {LABEL = WEIGHT}
    crf: bool = False  # score whole label sequences by a linear-chain CRF, and predict the best one (Viterbi)
    crf_start_end: bool = True  # the CRF scores the first and the last label; AllenNLP's NER did not
    # Tagging scheme that predicted sequences are valid in; detect: that of the labels, where B and I alone are IOB2.
    crf_scheme: Literal["detect", "none"] | Scheme = "detect"
    weight: float = 1.0  # of its mean loss in the total

    def __post_init__(self) -> None:
        super().__post_init__()
        check_weights(self.class_weights, self.labels, "class_weights")
        if not self.labels:
            raise ConfigError("labels is empty: a token classifier needs at least one label")
        check_dropout(self.dropout)
        if self.crf and self.class_weights:
            raise ConfigError("class_weights weigh words, but a CRF scores whole sentences: leave out one of them")

    def build_crf(self) -> CRF | None:
        """The CRF over the labels."""
        if not self.crf:
            return None
        scheme = None if self.crf_scheme == "detect" else self.crf_scheme
        found = None if scheme == "none" else allowed_transitions(self.labels, scheme)
        if found is not None and not (found[0] & found[1].diagonal() & found[2]).any():
            raise ConfigError(
                f"the labels {', '.join(self.labels)} form no valid sequence for some lengths: add O to the labels, or "
                "set crf_scheme=none"
            )
        return CRF(len(self.labels), boundaries=self.crf_start_end, allowed=found and Allowed(*found))

    def build(self, context: BuildContext) -> Tag:
        return Tag(self, context)


@dataclass(frozen=True)
class _Words:
    """The labelled words of a batch in rows of one text each."""

    slot_R: Tensor  # flat position of each word; N*M without a label
    sentence_R: Tensor  # number of its sentence, increasing within a text
    lengths_N: Tensor
    longest: int  # M

    def pad(self, values_R: Tensor) -> Tensor:
        """Values of words as [N, M, …]; zeros beyond the lengths."""
        slots, rest = len(self.lengths_N) * self.longest, values_R.shape[1:]
        flat = values_R.new_zeros(slots + 1, *rest).index_copy(0, self.slot_R, values_R)
        return flat[:-1].view(-1, self.longest, *rest)


class Tag(Objective):
    """Softmax over the classes at the first token of each word; the other tokens have no label.

    With a CRF, the logits are its emission scores. Its sequences are the sentences of each text. The loss is the sum of
    their negative log-likelihoods, divided by the number of words, so that it is comparable with the softmax's and does
    not depend on how words are split into sentences. Words without a label are left out of the sequence. It has no
    accuracy, because decoding costs as much as the loss.
    """

    pipeline = "token-classification"

    def __init__(self, config: Config, context: BuildContext) -> None:
        super().__init__(weight=config.weight)
        self.config = config
        self.layers = config.build_layers(context)
        self.reads_all_layers = self.layers.reads_all_layers or config.recurrent == "bilstm"  # which reads every token
        self.recurrent = config.build_recurrent(self.layers.width)
        width = self.layers.width if self.recurrent is None else self.recurrent.width
        self.dropout = nn.Dropout(config.dropout)
        self.head = nn.Linear(width, len(config.labels))
        self.crf = config.build_crf()
        if self.crf is not None:  # imports the compiler, which takes two seconds
            uncompiled = torch.compiler.disable(Tag._negative_log_likelihood)  # type: ignore[no-untyped-call]
            self._uncompiled = uncompiled
        self.class_weights = weight_tensor(config.class_weights)
        context.layer_config.init_weights(self)

    def has_transformers_head(self, pooling: str) -> bool:
        """transformers reads the last layer, and has no CRF."""
        return self.config.layers == "top" and self.recurrent is None and self.crf is None

    @property
    def sequence_decoder(self) -> SequenceDecoder | None:
        return None if self.crf is None else self.crf.decode

    def predict(self, encoding: Encoding, batch: Batch, table: Tensor | None) -> Tensor:
        """The logits at each selected token [R, K]."""
        x_TW = run_recurrent(self.recurrent, self.layers(encoding), batch)
        logits_RK: Tensor = self.head(self.dropout(x_TW[encoding.selections[self.name]]))
        return logits_RK

    def loss_from_logits(self, logits: Tensor, batch: Batch) -> Loss:
        """The cross entropy, or the negative log-likelihood of the label sequences, both counted by words."""
        if self.crf is None:
            return super().loss_from_logits(logits, batch)
        return self.make_loss(batch, self._uncompiled(self, self.crf, logits, batch), None)

    def _negative_log_likelihood(self, crf: CRF, logits_RK: Tensor, batch: Batch) -> Tensor:
        """The sum [] over all sentences; not compiled, because the compiler would unroll the loop over the words."""
        # a constant for each word changes no likelihood, and keeps the sums of long sentences small
        logits_RK = at_least_float32(logits_RK).log_softmax(1)
        labels_R, words = self.labels(batch), self._padded_words(batch)
        sentence_NM, breaks_NM = words.pad(words.sentence_R), None
        if self.name + STARTS in batch.indices:
            breaks_NM = sentence_NM != sentence_NM.roll(1, 1)
        sequences = LabelSequences(words.pad(logits_RK), words.lengths_N, breaks_NM)
        return crf.negative_log_likelihood(sequences, words.pad(labels_R)).sum()

    def _padded_words(self, batch: Batch) -> _Words:
        """Where the labelled words of each text are in rows of one text each."""
        labelled_R, index_R = self.label_mask(batch), batch.indices[self.name]
        texts = len(batch.cls_positions)
        size = batch.input_ids.numel() + 1
        # the last element takes the -1 of unused slots
        begins_T = index_R.new_zeros(size).index_fill(0, batch.cls_positions.remainder(size), 1)
        text_R = (begins_T.cumsum(0) - 1)[index_R]
        count_R = torch.where(labelled_R, labelled_R.cumsum(0) - 1, len(index_R))
        first_N = index_R.new_full((texts,), len(index_R)).scatter_reduce(0, text_R, count_R, "amin")
        position_R = count_R - first_N[text_R]
        lengths_N = index_R.new_zeros(texts).index_add(0, text_R, labelled_R.long())
        # on a GPU the longest text is not computed: the host would wait for it
        longest = max(1, min(batch.max_seqlen, len(index_R)) if index_R.is_cuda else int(lengths_N.max()))
        slot_R = torch.where(labelled_R, text_R * longest + position_R, texts * longest)
        if (starts := batch.indices.get(self.name + STARTS)) is not None:
            begins_T = begins_T.index_fill(0, starts, 1)
        return _Words(slot_R, begins_T.cumsum(0)[index_R], lengths_N, longest)

    @classmethod
    def collate_labels(cls, features: Sequence[LabelledRows]) -> tuple[list[Any], list[Any] | None]:
        """The classes and the first tokens of the words of each row."""
        indices = [np.zeros(0, np.int64) if one.indices is None else one.indices for one in features]
        labels = [
            np.full(len(selected), IGNORE_INDEX) if one.target is None else one.target
            for selected, one in zip(indices, features, strict=True)
        ]
        return labels, indices

    @classmethod
    def collate_indices(cls, name: str, features: Sequence[LabelledRows]) -> dict[str, list[Any]]:
        """The tokens that begin the sentences of rows with several sentences."""
        starts = [one.sentence_starts for one in features]
        if all(one is None for one in starts):
            return {}
        return {name + STARTS: [np.zeros(0, np.int64) if one is None else one for one in starts]}

    @classmethod
    def split_logits(cls, logits: NDArray[np.float32], features: Sequence[SelectedRows]) -> list[NDArray[np.float32]]:
        """The logits of the words of each row [words, K]."""
        sizes = [0 if one.indices is None else len(one.indices) for one in features]
        return np.split(logits[: sum(sizes)], np.cumsum(sizes)[:-1])
