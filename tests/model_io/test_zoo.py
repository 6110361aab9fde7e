"""Other people's model folders: ids and outputs equal those of the library that wrote them, before and after saving."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from model_io.folder_fixtures import one_line
from numpy.typing import NDArray

import bertsmith
from bertsmith.data.collate import collate_unpadded
from bertsmith.errors import BertsmithError
from bertsmith.export.sentence_transformers import export_sentence_transformers
from bertsmith.inference.predictor import Predictor
from bertsmith.model_io.importers import import_folder
from bertsmith.model_io.model_folder import open_model, save_model
from bertsmith.types import Row

transformers = pytest.importorskip("transformers")

from model_io import zoo  # noqa: E402
from model_io.zoo import CASES, Case  # noqa: E402

TOLERANCE = 1e-5
LOGITS = {
    "ForMaskedLM": {"masked_lm": "logits"},
    "ForPreTraining": {
        "masked_lm": "prediction_logits",
        "next_sentence": "seq_relationship_logits",
        "sentence_order": "sop_logits",
        "replaced_token": "logits",
    },
    "ForSequenceClassification": {"classify": "logits"},
    "ForTokenClassification": {"tag": "logits"},
    "ForQuestionAnswering": {"span": "start_logits"},
    "ForMultipleChoice": {"choose": "logits"},
}


def opened(folder: Path, output: Path) -> Predictor:
    """The model of a folder; pickled weights are imported first."""
    if list(folder.glob("*.bin*")):
        import_folder(folder, output)
        return bertsmith.load(output, device="cpu")
    return bertsmith.load(folder, device="cpu")


def oracle(folder: Path, case: Case) -> tuple[Any, Any]:
    """transformers' tokenizer and model of a folder."""
    name = f"{zoo.CLASSES[case.family]}{case.head}"
    model, info = getattr(transformers, name).from_pretrained(folder, output_loading_info=True, dtype=torch.float32)
    assert not [key for key in info["missing_keys"] if "pooler" not in key], info
    return transformers.AutoTokenizer.from_pretrained(folder), model.eval()


def compare(predictor: Predictor, folder: Path, case: Case) -> None:
    """Equal ids for every text, equal hidden states and logits for those without mask tokens."""
    tokenizer, model = oracle(folder, case)
    for text in case.texts:
        row = predictor.tokenizer.frame(predictor.tokenizer.encode(text, parse_special_tokens=True), max_length=48)
        ids = tokenizer(text)["input_ids"]
        assert row.ids.tolist() == ids, (text, tokenizer.convert_ids_to_tokens(ids))
        inputs = torch.tensor([ids])
        shape = inputs[:, None] if case.head == "ForMultipleChoice" else inputs
        with torch.no_grad():
            outputs = model(input_ids=shape, output_hidden_states=True)
        if "[MASK]" not in text:
            (hidden,) = predictor.embed_all([text]).vectors
            last = model.base_model(inputs).last_hidden_state[0].detach().numpy()
            np.testing.assert_allclose(hidden, last, atol=TOLERANCE, rtol=0)
        for name, key in LOGITS.get(case.head, {}).items():
            if name not in predictor.model.objectives:
                continue
            expected = getattr(outputs, key)[0].numpy()
            logits = _logits(predictor, row, name)
            np.testing.assert_allclose(logits.reshape(expected.shape), expected, atol=TOLERANCE, rtol=TOLERANCE)


def _logits(predictor: Predictor, row: Row, objective: str) -> NDArray[np.float32]:
    """The logits of a row in the layout of transformers."""
    indices = {objective: [np.arange(len(row))]} if objective in ("masked_lm", "tag") else None
    batch = collate_unpadded([row], padding_id=predictor.tokenizer.padding_id, indices=indices)
    with torch.no_grad():
        logits = predictor.model.predict(batch, objective).numpy()
    if objective == "replaced_token":
        return logits[:, 1]
    return logits[0, :, 0] if objective == "span" else logits


@pytest.mark.parametrize("case", CASES, ids=str)
def test_folder_opens_with_equal_outputs_and_is_saved_for_its_library(case: Case, tmp_path: Path) -> None:
    zoo.write(case, tmp_path / "theirs")
    predictor = opened(tmp_path / "theirs", tmp_path / "imported")
    compare(predictor, tmp_path / "theirs", case)
    save_model(predictor.model, predictor.tokenizer, tmp_path / "ours")
    compare(predictor, tmp_path / "ours", case)
    shutil.rmtree(tmp_path)


@pytest.mark.parametrize("weights", ["safetensors", "pickled"])
@pytest.mark.parametrize("tokenizer", ["vocab+config", "json"])
def test_case_is_imported_as_requested(weights: str, tokenizer: str, tmp_path: Path) -> None:
    zoo.write(Case("bert", "english-cased", tokenizer, weights), tmp_path / "theirs")
    theirs = transformers.BertTokenizer.from_pretrained(tmp_path / "theirs", do_lower_case=True)
    facts = import_folder(tmp_path / "theirs", tmp_path / "ours", lowercase=True)
    assert [note for note in facts.notes if "do_lower_case=false" in note and "lowercase=true as requested" in note]
    for text in zoo.TEXTS["english-cased"]:
        ours = bertsmith.load(tmp_path / "ours", device="cpu").tokenize([text])[0].ids
        assert list(ours) == theirs(text)["input_ids"] or "[MASK]" in text


def test_inferred_case_is_noted(tmp_path: Path) -> None:
    zoo.write(Case("bert", "korean", "vocab"), tmp_path / "theirs")
    _, tokenizer, facts = open_model(tmp_path / "theirs")
    assert facts.notes == ("lowercase=false, as the vocabulary has capital letters",)
    assert tokenizer.unknown_id not in tokenizer.encode(zoo.TEXTS["korean"][0]).ids


# --- sentence-transformers


@dataclass(frozen=True)
class SentenceCase:
    """A folder of sentence-transformers; texts are truncated to `max_seq_length` tokens."""

    pooling: str = "mean"
    normalize: bool = False
    old: bool = False  # written as by versions before 3: flags for the pooling, no similarity function
    max_seq_length: int = zoo.POSITIONS
    prompts: tuple[tuple[str, str], ...] = ()
    default_prompt: str | None = None
    language: str = "english"

    def __str__(self) -> str:
        names = [self.pooling, "old" * self.old, "normalized" * self.normalize, f"{self.max_seq_length}"]
        names += [self.language, "prompts" * bool(self.prompts), "default-prompt" * bool(self.default_prompt)]
        return "-".join(filter(None, names))

    @property
    def texts(self) -> list[str]:
        # without mask tokens: sentence-transformers parses special tokens in texts, here they are ordinary text
        texts = [text for text in zoo.TEXTS[self.language] if "[MASK]" not in text]
        return [*texts, " ".join(texts) * 9]


PROMPTS = (("query", "the cat "), ("passage", "a dog "))
SENTENCE_CASES = [
    *(SentenceCase(pooling, normalize) for pooling in ("mean", "cls") for normalize in (False, True)),
    *(SentenceCase("mean", True, old=True, max_seq_length=length) for length in (8, zoo.POSITIONS)),
    *(SentenceCase("cls", max_seq_length=16, language=language) for language in ("korean", "chinese")),
    SentenceCase("mean", prompts=PROMPTS),
    SentenceCase("mean", True, prompts=PROMPTS, default_prompt="query", max_seq_length=12),
]


def write_sentence_transformer(case: SentenceCase, folder: Path) -> None:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Normalize, Pooling, Transformer

    zoo.write(Case("bert", case.language, "vocab+class"), folder.with_name("encoder"))
    encoder = Transformer(str(folder.with_name("encoder")), max_seq_length=case.max_seq_length)
    modules = [encoder, Pooling(zoo.WIDTH, pooling_mode=case.pooling), *([Normalize()] if case.normalize else [])]
    prompts = {"prompts": dict(case.prompts), "default_prompt_name": case.default_prompt} if case.prompts else {}
    SentenceTransformer(modules=modules, device="cpu", **prompts).save(str(folder))
    if case.old:
        modes = {"pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean", "pooling_mode_max_tokens": "max"}
        flags = {key: mode == case.pooling for key, mode in modes.items()}
        zoo.write_json(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": zoo.WIDTH, **flags})
        limits = {"max_seq_length": case.max_seq_length, "do_lower_case": False}
        zoo.write_json(folder / "sentence_bert_config.json", limits)
        zoo.write_json(
            folder / "config_sentence_transformers.json", {"__version__": {"sentence_transformers": "2.2.0"}}
        )


@pytest.mark.parametrize("case", SENTENCE_CASES, ids=str)
def test_sentence_transformers_folder(case: SentenceCase, tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    write_sentence_transformer(case, tmp_path / "theirs")
    theirs = SentenceTransformer(str(tmp_path / "theirs"), device="cpu")
    predictor = bertsmith.load(tmp_path / "theirs", device="cpu")
    np.testing.assert_allclose(predictor.encode(case.texts), theirs.encode(case.texts), atol=TOLERANCE)
    for name, _ in case.prompts:
        expected = theirs.encode(case.texts, prompt_name=name)
        np.testing.assert_allclose(predictor.encode(case.texts, prompt=name), expected, atol=TOLERANCE)
    export_sentence_transformers(tmp_path / "theirs", tmp_path / "ours")
    again = SentenceTransformer(str(tmp_path / "ours"), device="cpu")
    np.testing.assert_allclose(again.encode(case.texts), theirs.encode(case.texts), atol=TOLERANCE)
    for name, _ in case.prompts:
        expected = theirs.encode(case.texts, prompt_name=name)
        np.testing.assert_allclose(again.encode(case.texts, prompt_name=name), expected, atol=TOLERANCE)


# --- refusals: one line that says what is wrong and what to do


def refuse_lfs_pointer(folder: Path, name: str = "model.safetensors") -> None:
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 440473133\n"
    (folder / name).write_text(pointer)


def refuse_truncated_file(folder: Path, name: str = "model.safetensors") -> None:
    data = (folder / name).read_bytes()
    (folder / name).write_bytes(data[: len(data) // 2])


def refuse_narrow_roformer(folder: Path) -> None:
    config = transformers.RoFormerConfig.from_pretrained(folder, embedding_size=16)
    transformers.RoFormerModel(config).save_pretrained(folder)


def refuse_pickled_index(folder: Path) -> None:
    zoo.shard(folder, pickled=True)
    (folder / "pytorch_model-00002-of-00003.bin").unlink()


def refuse_factorised(folder: Path) -> None:
    """ALBERT's narrow token table under BERT's config."""
    zoo.replace_tensors(folder, _narrow)


def _narrow(tensors: zoo.Tensors) -> zoo.Tensors:
    name = next(name for name in tensors if "word_embeddings" in name)
    return tensors | {
        name: tensors[name][:, :8].clone(),
        "encoder.embedding_hidden_mapping_in.weight": torch.randn(24, 8),
    }


def refuse_changed_sinusoids(folder: Path) -> None:
    name = "encoder.embed_positions.weight"
    zoo.replace_tensors(folder, lambda tensors: tensors | {name: tensors[name] * 2})


REFUSED: dict[str, tuple[Case, Callable[[Path], object], tuple[str, ...]]] = {
    "Git LFS pointer": (Case("bert"), refuse_lfs_pointer, ("Git LFS", "git lfs pull")),
    "truncated file": (Case("bert"), refuse_truncated_file, ("model.safetensors", "bytes")),
    "missing shard": (Case("bert"), refuse_pickled_index, ("pytorch_model-00002-of-00003.bin",)),
    "factorised embeddings": (Case("bert"), refuse_factorised, ("embedding", "albert")),
    "relative positions": (
        Case("bert"),
        lambda folder: zoo.change_config(folder, position_embedding_type="relative_key"),
        ("position_embedding_type",),
    ),
    "changed sinusoids": (Case("roformer"), refuse_changed_sinusoids, ("embed_positions",)),
    "RoFormer's Chinese tokenizer": (
        Case("roformer", "chinese", "vocab+config"),
        lambda folder: None,
        ("RoFormerTokenizer", "jieba"),
    ),
    "another activation": (Case("bert"), lambda folder: zoo.change_config(folder, hidden_act="mish"), ("hidden_act",)),
    "no tokenizer": (
        Case("bert", tokenizer="json-only"),
        lambda folder: [path.unlink() for path in folder.glob("*to*")],
        ("--tokenizer",),
    ),
    "pointer of the config": (
        Case("bert"),
        lambda folder: refuse_lfs_pointer(folder, "config.json"),
        ("git lfs pull",),
    ),
    "pointer of a pickle": (
        Case("bert", weights="pickled"),
        lambda folder: refuse_lfs_pointer(folder, "pytorch_model.bin"),
        ("pytorch_model.bin", "git lfs pull"),
    ),
    "pointer of a vocabulary": (
        Case("bert", tokenizer="vocab"),
        lambda folder: refuse_lfs_pointer(folder, "vocab.txt"),
        ("vocab.txt", "git lfs pull"),
    ),
    "truncated pickle": (
        Case("bert", weights="pickled"),
        lambda folder: refuse_truncated_file(folder, "pytorch_model.bin"),
        ("pytorch_model.bin is truncated", "bytes", "download it again"),
    ),
    "missing safetensors": (
        Case("bert", weights="sharded"),
        lambda folder: (folder / "model-00002-of-00003.safetensors").unlink(),
        ("model-00002-of-00003.safetensors is missing",),
    ),
    "RoFormer's narrow embeddings": (
        Case("roformer"),
        refuse_narrow_roformer,
        ("factorised", "embeddings_project", "RoFormer"),
    ),
    "quantised": (
        Case("bert"),
        lambda folder: zoo.change_config(folder, quantization_config={"bits": 4}),
        ("quantization_config",),
    ),
    "a family that is not supported": (
        Case("bert"),
        lambda folder: zoo.change_config(folder, model_type="deberta-v2", architectures=["DebertaV2Model"]),
        ("deberta-v2",),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_folder_that_cannot_be_read_exactly_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    case, change, words = REFUSED[name]
    zoo.write(case, tmp_path / "theirs")
    change(tmp_path / "theirs")
    with pytest.raises(BertsmithError) as error:
        opened(tmp_path / "theirs", tmp_path / "imported")
    one_line(error, *words)
