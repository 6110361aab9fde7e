"""BLEU and chrF of translations, by sacrebleu (the extra `mt`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bertsmith.errors import BertsmithError


def translation_scores(translations: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
    """Corpus BLEU and chrF, cased and detokenised, with sacrebleu's signatures, which make scores comparable.

    `bleu_lowercase` is BLEU in lower case, as some of the literature has it. The usual tokenizer of BLEU, 13a, splits
    neither Japanese nor Chinese; for these only chrF is comparable.
    """
    if len(translations) != len(references) or not references:
        raise BertsmithError(f"{len(translations):,} translations and {len(references):,} references: expected as many")
    try:
        from sacrebleu.metrics import BLEU, CHRF
    except ImportError as error:
        raise BertsmithError("BLEU and chrF need sacrebleu: pip install 'bertsmith[mt]'") from error
    scores: dict[str, Any] = {}
    lowercase = BLEU(lowercase=True, force=True)  # force: BLEU() warns of tokenized texts already
    for name, metric in (("bleu", BLEU()), ("bleu_lowercase", lowercase), ("chrf", CHRF())):
        scores[name] = metric.corpus_score(list(translations), [list(references)]).score
        scores[f"{name}_signature"] = str(metric.get_signature())
    return scores
