"""BERT in transformers folders."""

from __future__ import annotations

from bertsmith.encoders import bert
from bertsmith.model_io.huggingface import family

HEAD = "cls.predictions"

FAMILY = family.Family(
    name="bert",
    title="BERT",
    classes="Bert",
    prefix="bert.",
    encoder=bert.Config,
    architectures={
        "BertModel": (),
        "BertForPreTraining": ("masked_lm", "next_sentence"),
        "BertForMaskedLM": ("masked_lm",),
        "BertForNextSentencePrediction": ("next_sentence",),
        "BertLMHeadModel": ("causal_lm",),
        **family.task_architectures("Bert"),
    },
    heads={**dict.fromkeys(family.LM_HEADS, f"{HEAD}."), "next_sentence": "cls.seq_relationship.", **family.TASK_HEADS},
    head_modules={
        **family.lm_modules(HEAD, f"{HEAD}.transform.dense", f"{HEAD}.transform.LayerNorm"),
        "objectives.next_sentence.classify": "cls.seq_relationship",
        **family.task_modules(),
    },
    copies=family.tied_decoder(HEAD, "bert."),
)
