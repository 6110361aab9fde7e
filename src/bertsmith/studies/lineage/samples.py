"""Example predictions of a pre-trained model for sentences with one *marked* word.

Masked words, next words, translations, nearest neighbours, and the similarity of the vectors of one word in different
sentences, as far as the model supports them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from bertsmith.data.collate import collate
from bertsmith.errors import BertsmithError
from bertsmith.inference.predictor import Predictor
from bertsmith.inference.word_contexts import MarkedText, parse_marked
from bertsmith.studies.lineage.text_loss import BOTH, CAUSAL, MASKED, token_logits

TOP = 5
TRANSLATION = "translation"


def samples(predictor: Predictor, sentences: Sequence[str], *, generator: Path | None) -> dict[str, Any]:
    """By kind of prediction, one entry for each sentence; `generator`: of ELECTRA, which fills gaps in its place."""
    marked, heads = [parse_marked(one) for one in sentences], predictor.model.objectives
    found: dict[str, Any] = {"contexts": _contexts(predictor, sentences)}
    if MASKED in heads:
        found["filled"] = [_filled(predictor, one) for one in marked]
    if CAUSAL in heads or BOTH in heads:
        found["next"] = [_next(predictor, one, CAUSAL if CAUSAL in heads else BOTH) for one in marked]
    if predictor.model.encoder.direction == "none":
        found["near"] = {one.word: _near(predictor, one.word) for one in marked}
    if TRANSLATION in heads:
        found["translated"] = [str(one["text"]) for one in predictor.translate([one.text for one in marked])]
    if generator is not None:
        with Predictor.open(generator, device=predictor.device) as helper:
            found["filled by the generator"] = [_filled(helper, one) for one in marked]
    return found


def _contexts(predictor: Predictor, sentences: Sequence[str]) -> list[list[float]] | str:
    """Cosine similarities of the marked words, or why there are none."""
    if len(sentences) < 2:
        return "one sentence has nothing to compare with"
    try:
        similarity: list[list[float]] = predictor.word_contexts(list(sentences)).to_json()["similarity"]
    except BertsmithError as error:
        return str(error)
    return similarity


def _filled(predictor: Predictor, one: MarkedText) -> list[str]:
    mask = predictor.tokenizer.id_to_token(predictor.tokenizer.mask_id)
    filled = predictor.fill_mask(one.text[: one.start] + mask + one.text[one.end :], top_k=TOP)
    return [str(answer["token_str"]).strip() for answer in filled]


def _next(predictor: Predictor, one: MarkedText, head: str) -> list[str]:
    """The most likely tokens in place of the marked word, from the words before it."""
    tokenizer, before = predictor.tokenizer, one.text[: one.start].strip()
    encoded = tokenizer.encode(before)
    if not len(encoded):
        return []
    row = tokenizer.frame(encoded, max_length=len(encoded) + 4)
    last = int((row.sequence_ids == 0).nonzero()[0][-1])
    batch = collate([row], length=len(row), padding_id=tokenizer.padding_id)
    logits_TV = token_logits(predictor, batch, head)  # of both directions: first those of the forward one
    logits_V = logits_TV[last, : tokenizer.vocab_size].clone()
    logits_V[list(tokenizer.special_ids)] = -torch.inf
    return [tokenizer.decode([number]).strip() for number in logits_V.topk(TOP).indices.tolist()]


def _near(predictor: Predictor, word: str) -> list[str]:
    try:
        return [one.word for one in predictor.neighbours(word, top_k=TOP)]
    except BertsmithError:  # a word outside of the vocabulary
        return []
