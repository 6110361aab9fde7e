"""GPT-1 equals transformers with large random weights in float32 and float64, folders in both directions."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from model_fixtures import randomize_weights, relative_difference
from model_io.folder_fixtures import change_config, change_weights, one_line, same_weights
from model_io.folder_fixtures import tokenizer as wordpiece

from bertsmith.data.collate import collate
from bertsmith.encoders import gpt
from bertsmith.errors import ConfigError
from bertsmith.model_io.loading import parameter_count
from bertsmith.model_io.model import Model
from bertsmith.model_io.model_folder import open_for, open_model, save_model
from bertsmith.objectives import causal_lm, choose, classify, multi_label, regress, tag
from bertsmith.tokenizers.bpe import BPE, LAST, Config
from bertsmith.types import IGNORE_INDEX, Batch

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
NAMES = ("a", "b", "c")
CASES: dict[str, tuple[str, list[Any]]] = {
    "alone": ("OpenAIGPTModel", []),
    "causal_lm": ("OpenAIGPTLMHeadModel", [causal_lm.Config()]),
    "choose": ("OpenAIGPTDoubleHeadsModel", [causal_lm.Config(), choose.Config(dropout=0.2)]),
    "classify": ("OpenAIGPTForSequenceClassification", [classify.Config(labels=NAMES, dropout=0.3)]),
    "regress": ("OpenAIGPTForSequenceClassification", [regress.Config(dropout=0.0)]),
    "multi_label": ("OpenAIGPTForSequenceClassification", [multi_label.Config(labels=NAMES)]),
}
SMALL: dict[str, Any] = {"layers": 3, "width": 32, "heads": 4, "max_positions": 40}
THEIRS: dict[str, Any] = {"n_layer": 3, "n_embd": 32, "n_head": 4, "n_positions": 40}


@cache
def tokenizer() -> BPE:
    """Characters, with and without an end of word, and one merge."""
    return Config(min_count=9).train({"ab": 9, "cad": 1}, vocab_size=200)


def random_model(heads: list[Any], **changes: Any) -> Model:
    config = gpt.Config(
        **SMALL | {"vocab_size": tokenizer().vocab_size, "padding_id": tokenizer().padding_id} | changes
    )
    return randomize_weights(Model.build(config, heads)).eval()


def batch() -> Batch:
    """Three texts of different lengths, padded, a pair among them."""
    words = tokenizer()
    texts = [words.encode(text) for text in ("ab cad", "fee ab bad head", "h")]
    rows = [words.frame(texts[0], max_length=40), words.frame(*texts[:2], max_length=40)]
    return collate([*rows, words.frame(texts[2], max_length=40)], length=24, padding_id=words.padding_id)


def compare(model: Model, reference: Any, dtype: torch.dtype) -> None:
    """Hidden states and probabilities of every layer, logits of every head, and the loss of the language model."""
    model, reference, inputs = model.to(dtype), reference.to(dtype).eval(), batch()
    real, rows = (inputs.document_ids != 0).flatten(), (inputs.document_ids != 0).sum(1)
    theirs: dict[str, Any] = {"input_ids": inputs.input_ids, "attention_mask": (inputs.document_ids != 0).long()}
    shifted = inputs.input_ids.where(inputs.document_ids != 0, IGNORE_INDEX)
    if "causal_lm" in model.objectives:
        theirs |= {"labels": shifted}
    if "choose" in model.objectives:
        theirs |= {"mc_token_ids": (rows - 1)[None]}
        theirs |= {name: theirs[name][None] for name in ("input_ids", "labels")}
        # transformers does not broadcast the mask over choices; later padding is not seen anyway
        del theirs["attention_mask"]
    with torch.no_grad():
        outputs = reference(**theirs, output_hidden_states=True, output_attentions=True)
        encoding = model.encoder(inputs, return_layers=True, return_attentions=True)
        pairs = [(a, b.view(a.shape)) for a, b in zip(encoding.layers, outputs.hidden_states, strict=True)]
        if "choose" not in model.objectives:
            pairs += [
                (a.transpose(1, 2).flatten(0, 1), b.transpose(1, 2).flatten(0, 1))
                for a, b in zip(encoding.attentions, outputs.attentions, strict=True)
            ]
        pairs = [(a[real], b[real]) for a, b in pairs]
        for name in model.objectives:
            logits = model.predict(inputs, name)
            if name == "causal_lm":
                pairs.append((logits[real], outputs.logits.reshape(logits.shape)[real]))
            else:
                pairs.append((logits, outputs.mc_logits.T if name == "choose" else outputs.logits))
        assert max(relative_difference(actual, expected) for actual, expected in pairs) < TOLERANCE[dtype]
        if "causal_lm" in model.objectives:
            only = Model(model.encoder, [model.objectives["causal_lm"]])
            # transformers computes losses in float32
            assert only(only.corrupt(inputs)).mean().item() == pytest.approx(outputs.loss.item(), rel=1e-6)


@pytest.mark.parametrize("kind", CASES)
def test_bertsmith_folders_load_in_transformers(kind: str, tmp_path: Path) -> None:
    architecture, heads = CASES[kind]
    model = random_model(heads, **({"activation": "relu", "layer_norm_eps": 1e-6} if kind == "classify" else {}))
    save_model(model, tokenizer(), tmp_path / "bertsmith")
    written = json.loads((tmp_path / "bertsmith" / "config.json").read_text())
    assert (written["architectures"], written["model_type"]) == ([architecture], "openai-gpt")
    reference, loading = getattr(transformers, architecture).from_pretrained(
        tmp_path / "bertsmith", output_loading_info=True, attn_implementation="eager"
    )
    assert not any(loading[what] for what in ("missing_keys", "mismatched_keys", "unexpected_keys")), loading
    for dtype in TOLERANCE:
        compare(model, reference, dtype)
    model, reference = model.float(), reference.float()
    reference.save_pretrained(tmp_path / "transformers")
    tokenizer().save(tmp_path / "transformers")
    for folder in ("bertsmith", "transformers"):
        reloaded, _, facts = open_model(tmp_path / folder)
        same_weights(model, reloaded)
        assert facts.notes == ()
        assert [getattr(head, "config", None) for head in reloaded.objectives.values()] == [
            getattr(head, "config", None) for head in model.objectives.values()
        ]


@pytest.mark.parametrize("kind", CASES)
def test_transformers_folders_load_here(kind: str, tmp_path: Path) -> None:
    architecture, _ = CASES[kind]
    labels = {"num_labels": 1 if kind == "regress" else 3, "problem_type": problem_type(kind)}
    ids = {"vocab_size": tokenizer().vocab_size, "pad_token_id": tokenizer().padding_id}
    config = transformers.OpenAIGPTConfig(**THEIRS | ids | labels, attn_implementation="eager")
    reference = randomize_weights(getattr(transformers, architecture)(config))
    reference.save_pretrained(tmp_path / "transformers")
    tokenizer().save(tmp_path / "transformers")
    model, _, facts = open_model(tmp_path / "transformers")
    assert facts.architectures == (architecture,)
    assert facts.notes == ()
    assert facts.parameters == parameter_count(reference)
    for dtype in TOLERANCE:
        compare(model, reference, dtype)


def problem_type(kind: str) -> str | None:
    return {"regress": "regression", "multi_label": "multi_label_classification"}.get(kind)


def test_multiple_choice_alone_is_saved_with_the_language_model(tmp_path: Path) -> None:
    model = random_model([choose.Config()])
    save_model(model, tokenizer(), tmp_path / "m")
    reloaded, _, facts = open_model(tmp_path / "m")
    assert facts.architectures == ("OpenAIGPTDoubleHeadsModel",)
    assert list(reloaded.objectives) == ["causal_lm", "choose"]
    assert torch.equal(reloaded.predict(batch(), "choose"), model.predict(batch(), "choose"))


def test_tokenizers_of_other_models_do_not_return_segment_ids(tmp_path: Path) -> None:
    """transformers' GPT-1 would add the token embedding of segment 0 to every token."""
    words = wordpiece()
    save_model(random_model([], vocab_size=words.vocab_size, padding_id=0), words, tmp_path / "m")
    assert [*transformers.AutoTokenizer.from_pretrained(tmp_path / "m")("the cat")] == ["input_ids", "attention_mask"]
    assert open_model(tmp_path / "m")[1].fingerprint == words.fingerprint


def test_an_old_folder_without_prefix_and_with_masks_loads(tmp_path: Path) -> None:
    model = random_model([causal_lm.Config()])
    save_model(model, tokenizer(), tmp_path / "m")
    (tmp_path / "m" / "checksums.json").unlink()

    def as_in_2019(tensors: dict[str, torch.Tensor]) -> None:
        for name in list(tensors):
            tensors[name.removeprefix("transformer.")] = tensors.pop(name)
        tensors |= {f"h.{layer}.attn.bias": torch.ones(1, 1, 40, 40).tril() for layer in range(3)}
        tensors["lm_head.weight"] = tensors["tokens_embed.weight"].clone()

    change_weights(tmp_path / "m", as_in_2019)
    same_weights(model, open_model(tmp_path / "m")[0])


def test_special_tokens_that_the_released_table_lacks_get_new_rows(tmp_path: Path) -> None:
    words = tokenizer()
    rows = words.vocab_size - len(LAST)
    config = transformers.OpenAIGPTConfig(**THEIRS | {"vocab_size": rows})
    reference = randomize_weights(transformers.OpenAIGPTLMHeadModel(config))
    reference.save_pretrained(tmp_path / "m")
    ids = {words.id_to_token(number): number for number in range(rows)}
    (tmp_path / "m" / "vocab.json").write_text(json.dumps(ids))
    (tmp_path / "m" / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "OpenAIGPTTokenizer", "splitter": "pattern"}'
    )
    (tmp_path / "m" / "merges.txt").write_text("#version: 0.2\na b</w>\n")
    model, _, facts = open_model(tmp_path / "m")
    again, _, _ = open_for(tmp_path / "m", [classify.Config()], seed=4)
    table = model.encoder.token_embeddings
    assert table.shape == (words.vocab_size, 32)
    assert torch.equal(table[:rows], reference.transformer.tokens_embed.weight)
    assert 0.01 < table[rows:].std() < 0.03
    assert torch.equal(table, again.encoder.token_embeddings)
    assert facts.notes[0] == "newly initialised: the embeddings of " + ", ".join(LAST) + ", which the token table lacks"


def test_models_without_a_transformers_class_have_the_bertsmith_type(tmp_path: Path) -> None:
    cases: list[tuple[list[Any], dict[str, Any]]] = [
        ([], {"feed_forward": 48}),
        ([], {"activation": "gelu"}),
        ([], {"causal": False}),
        ([classify.Config(pooling="mean")], {}),
        ([tag.Config()], {}),
    ]
    for number, (heads, changes) in enumerate(cases):
        model = random_model(heads, **changes)
        save_model(model, tokenizer(), tmp_path / str(number))
        assert json.loads((tmp_path / str(number) / "config.json").read_text())["model_type"] == "bertsmith"
        same_weights(model, open_model(tmp_path / str(number))[0])


def test_other_activations_and_summaries_are_refused(tmp_path: Path) -> None:
    save_model(random_model(CASES["choose"][1]), tokenizer(), tmp_path / "m")
    (tmp_path / "m" / "checksums.json").unlink()
    for key, value in (("afn", "gelu_new"), ("summary_type", "mean"), ("summary_activation", "tanh")):
        before = json.loads((tmp_path / "m" / "config.json").read_text())[key]
        change_config(tmp_path / "m", **{key: value})
        with pytest.raises(ConfigError) as error:
            open_model(tmp_path / "m")
        one_line(error, str(tmp_path / "m" / "config.json"), key)
        change_config(tmp_path / "m", **{key: before})


def test_parameter_count_of_the_published_model() -> None:
    with torch.device("meta"):
        reference = transformers.OpenAIGPTLMHeadModel(transformers.OpenAIGPTConfig())
        assert parameter_count(reference) == parameter_count(Model.build(gpt.Config(), [causal_lm.Config()]))
