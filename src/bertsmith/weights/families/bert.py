"""BERT in transformers' folders."""

from __future__ import annotations

from bertsmith.encoders import bert
from bertsmith.weights.families.family import Family, stored_positions, transformer_modules, transformer_witnesses

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
        "classify": "classifier.",
        "regress": "classifier.",
        "tag": "classifier.",
        "choose": "classifier.",
        "span": "qa_outputs.",
    },
    modules={
        **transformer_modules(PREFIX),
        "objectives.masked_lm": "cls.predictions",
        "objectives.masked_lm.transform": "cls.predictions.transform.dense",
        "objectives.masked_lm.norm": "cls.predictions.transform.LayerNorm",
        "objectives.causal_lm": "cls.predictions",
        "objectives.causal_lm.transform": "cls.predictions.transform.dense",
        "objectives.causal_lm.norm": "cls.predictions.transform.LayerNorm",
        "objectives.next_sentence.classify": "cls.seq_relationship",
        "objectives.classify.head": "classifier",
        "objectives.regress.head": "classifier",
        "objectives.tag.head": "classifier",
        "objectives.choose.head": "classifier",
        "objectives.span.head": "qa_outputs",
    },
    buffers=stored_positions(PREFIX),
    copies=(
        ("cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"),
        ("cls.predictions.decoder.bias", "cls.predictions.bias"),
    ),
    witnesses=transformer_witnesses(PREFIX),
    defaults={"max_position_embeddings": 512, "type_vocab_size": 2, "intermediate_size": 3072},
)
