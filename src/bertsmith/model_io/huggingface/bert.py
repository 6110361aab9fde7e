"""BERT in transformers folders."""

from __future__ import annotations

from bertsmith.encoders import bert
from bertsmith.model_io.huggingface.family import (
    TASK_HEADS,
    Family,
    lm_modules,
    stored_positions,
    task_modules,
    transformer_modules,
    transformer_size_tensors,
)

PREFIX = "bert."


FAMILY = Family(
    name="bert",
    title="BERT",
    classes="Bert",
    prefix=PREFIX,
    encoder=bert.Config,
    architectures={
        "BertModel": (),
        "BertForPreTraining": ("masked_lm", "next_sentence"),
        "BertForMaskedLM": ("masked_lm",),
        "BertForNextSentencePrediction": ("next_sentence",),
        "BertLMHeadModel": ("causal_lm",),
        "BertForSequenceClassification": ("classify",),  # or regress: problem_type tells
        "BertForTokenClassification": ("tag",),
        "BertForQuestionAnswering": ("span",),
        "BertForMultipleChoice": ("choose",),
    },
    heads={
        "masked_lm": "cls.predictions.",
        "causal_lm": "cls.predictions.",
        "next_sentence": "cls.seq_relationship.",
        **TASK_HEADS,
    },
    modules={
        **transformer_modules(PREFIX),
        **lm_modules("cls.predictions", "cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm"),
        "objectives.next_sentence.classify": "cls.seq_relationship",
        **task_modules(),
    },
    buffers=stored_positions(PREFIX),
    copies=(
        ("cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"),
        ("cls.predictions.decoder.bias", "cls.predictions.bias"),
    ),
    size_tensors=transformer_size_tensors(PREFIX),
    defaults={"max_position_embeddings": 512, "type_vocab_size": 2, "intermediate_size": 3072},
)
