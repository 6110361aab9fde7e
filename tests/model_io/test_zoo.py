"""Other people's model folders: ids and outputs equal those of the library that wrote them, before and after saving."""

from __future__ import annotations

import json
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
from bertsmith.errors import BertsmithError, FolderWarning
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
    "ForSequenceClassification": {"classify": "logits", "multi_label": "logits"},
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
    with pytest.warns(FolderWarning, match="theirs: lowercase=false, as the vocabulary has capital letters"):
        _, tokenizer, facts = open_model(tmp_path / "theirs")
    assert facts.notes == ("lowercase=false, as the vocabulary has capital letters",)
    assert tokenizer.unknown_id not in tokenizer.encode(zoo.TEXTS["korean"][0]).ids


def test_multi_label_models_give_every_label_its_own_probability(tmp_path: Path) -> None:
    case = Case("bert", head="ForSequenceClassification", weights="multi-label")
    zoo.write(case, tmp_path / "theirs")
    predictor = bertsmith.load(tmp_path / "theirs", device="cpu")
    pipeline = transformers.pipeline("text-classification", str(tmp_path / "theirs"), device="cpu", top_k=None)
    texts = [text for text in case.texts if text and "[MASK]" not in text]
    for text, expected, shares in zip(texts, pipeline(texts), predictor.predict_proba(texts), strict=True):
        assert [one["label"] for one in predictor.predict(text)] == [one["label"] for one in expected]
        np.testing.assert_allclose(
            [one["score"] for one in predictor.predict(text)], [one["score"] for one in expected], atol=TOLERANCE
        )
        assert sorted(shares, reverse=True) == pytest.approx(
            [one["score"] for one in predictor.predict(text)], abs=1e-6
        )
        assert len(predictor.predict(text, top_k=2)) == 2
    save_model(predictor.model, predictor.tokenizer, tmp_path / "ours")
    assert '"problem_type": "multi_label_classification"' in (tmp_path / "ours" / "config.json").read_text()


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
    family: str = "bert"
    dense: tuple[str, ...] = ()  # activations of linear layers
    lowercase: bool = False
    subfolder: bool = False  # the encoder in 0_Transformer, as by version 1

    def __str__(self) -> str:
        names = [self.pooling, "old" * self.old, "normalized" * self.normalize, f"{self.max_seq_length}"]
        names += [self.language, "prompts" * bool(self.prompts), "default-prompt" * bool(self.default_prompt)]
        names += [self.family * (self.family != "bert"), *self.dense]
        names += ["lowercase" * self.lowercase, "subfolder" * self.subfolder]
        return "-".join(filter(None, names))

    @property
    def texts(self) -> list[str]:
        # without mask tokens: sentence-transformers parses special tokens in texts, here they are ordinary text
        texts = [text for text in zoo.TEXTS[self.language] if "[MASK]" not in text]
        return [*texts, " ".join(texts) * 9, " The Cats ΑΣ İ "]


PROMPTS = (("query", "the cat "), ("passage", "a dog "))
ROLES = (("query", "the cat: "), ("document", "a dog"))
SENTENCE_CASES = [
    *(SentenceCase(pooling, normalize) for pooling in ("mean", "cls") for normalize in (False, True)),
    *(SentenceCase("mean", True, old=True, max_seq_length=length) for length in (8, zoo.POSITIONS)),
    *(SentenceCase("cls", max_seq_length=16, language=language) for language in ("korean", "chinese")),
    SentenceCase("mean", prompts=PROMPTS),
    SentenceCase("mean", True, prompts=PROMPTS, default_prompt="query", max_seq_length=12),
    *(SentenceCase(pooling, old=old) for pooling in ("max", "mean_sqrt_len_tokens") for old in (False, True)),
    *(SentenceCase(pooling, True, dense=("Tanh",)) for pooling in ("mean", "cls")),
    SentenceCase("mean", dense=("Identity", "Tanh"), max_seq_length=10),
    *(SentenceCase("mean", subfolder=True, old=old, max_seq_length=9) for old in (False, True)),
    SentenceCase("cls", True, subfolder=True, dense=("Tanh",), prompts=PROMPTS, default_prompt="passage"),
    SentenceCase("mean", lowercase=True, language="english-cased", old=True),
    *(SentenceCase(family=family, prompts=ROLES, max_seq_length=20) for family in ("roberta", "modernbert", "albert")),
    SentenceCase(family="roberta", language="english-cased", lowercase=True, old=True, prompts=ROLES),
]


def write_sentence_transformer(case: SentenceCase, folder: Path) -> None:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Dense, Normalize, Pooling, Transformer

    zoo.write(
        Case(case.family, case.language, "vocab+class" if case.family == "bert" else "json"),
        folder.with_name("encoder"),
    )
    encoder = Transformer(str(folder.with_name("encoder")), max_seq_length=case.max_seq_length)
    sizes = [zoo.WIDTH, *(zoo.WIDTH - 5 * number for number, _ in enumerate(case.dense, start=1))]
    dense = [
        Dense(size, smaller, bias=name == "Tanh", activation_function=getattr(torch.nn, name)())
        for size, smaller, name in zip(sizes, sizes[1:], case.dense, strict=False)
    ]
    pooling = Pooling(zoo.WIDTH, pooling_mode=case.pooling)
    modules = [encoder, pooling, *dense, *([Normalize()] if case.normalize else [])]
    prompts = {"prompts": dict(case.prompts), "default_prompt_name": case.default_prompt} if case.prompts else {}
    SentenceTransformer(modules=modules, device="cpu", **prompts).save(str(folder))
    if case.old:
        keys = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens")
        flags = {
            f"pooling_mode_{key}": key.removesuffix("_token") == case.pooling
            or key.removesuffix("_tokens") == case.pooling.removesuffix("_tokens")
            for key in keys
        }
        zoo.write_json(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": zoo.WIDTH, **flags})
        limits = {"max_seq_length": case.max_seq_length, "do_lower_case": case.lowercase}
        zoo.write_json(folder / "sentence_bert_config.json", limits)
        version = {"__version__": {"sentence_transformers": "2.2.0"}, "prompts": dict(case.prompts)}
        zoo.write_json(folder / "config_sentence_transformers.json", version)
    if case.subfolder:
        move_encoder(folder)


def move_encoder(folder: Path) -> None:
    """The encoder in 0_Transformer; config.json then has the versions."""
    (folder / "0_Transformer").mkdir()
    for path in list(folder.iterdir()):
        if path.is_file() and path.name not in ("modules.json", "config_sentence_transformers.json", "README.md"):
            path.rename(folder / "0_Transformer" / path.name)
    modules = json.loads((folder / "modules.json").read_text())
    zoo.write_json(folder / "modules.json", [modules[0] | {"path": "0_Transformer"}, *modules[1:]])
    zoo.write_json(folder / "config.json", {"__version__": "1.0.0"})


@pytest.mark.parametrize("case", SENTENCE_CASES, ids=str)
def test_sentence_transformers_folder(case: SentenceCase, tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    write_sentence_transformer(case, tmp_path / "theirs")
    theirs = SentenceTransformer(str(tmp_path / "theirs"), device="cpu")
    predictor = bertsmith.load(tmp_path / "theirs", device="cpu")
    names = [None, *(name for name, _ in case.prompts)]
    expected = {name: theirs.encode(case.texts, prompt_name=name) for name in names}
    for name in names:
        np.testing.assert_allclose(predictor.encode(case.texts, prompt=name), expected[name], atol=TOLERANCE)
    np.testing.assert_allclose(
        predictor.encode(case.texts, prompt=""), theirs.encode(case.texts, prompt=""), atol=TOLERANCE
    )
    assert predictor.encode(case.texts).shape[1] == predictor.embedding_width()
    facts = export_sentence_transformers(tmp_path / "theirs", tmp_path / "ours")
    assert f"over {case.max_seq_length} tokens" in facts["compared"]
    import_folder(tmp_path / "theirs", tmp_path / "imported")
    for folder in ("ours", "imported"):
        again = SentenceTransformer(str(tmp_path / folder), device="cpu")
        for name in names:
            np.testing.assert_allclose(again.encode(case.texts, prompt_name=name), expected[name], atol=TOLERANCE)


def test_ranking_uses_the_prompts_of_queries_and_documents(tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    case = SentenceCase("mean", prompts=ROLES, default_prompt="query")
    write_sentence_transformer(case, tmp_path / "theirs")
    theirs = SentenceTransformer(str(tmp_path / "theirs"), device="cpu")
    queries = theirs.encode_query(["the cat"], normalize_embeddings=True)
    expected = theirs.encode_document(case.texts, normalize_embeddings=True) @ queries[0]
    predictor = bertsmith.load(tmp_path / "theirs", device="cpu")
    found = {one["index"]: one["score"] for one in predictor.rank("the cat", case.texts)}
    np.testing.assert_allclose([found[number] for number in range(len(expected))], expected, atol=TOLERANCE)
    cosines = predictor.similarity(["the cat"], case.texts)  # the default prompt for both
    same = theirs.similarity(theirs.encode(["the cat"]), theirs.encode(case.texts)).numpy()
    np.testing.assert_allclose(cosines, same, atol=TOLERANCE)


def test_pickled_sentence_transformers_folder_is_imported_with_its_settings(tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    case = SentenceCase("cls", True, subfolder=True, max_seq_length=9)
    write_sentence_transformer(case, tmp_path / "theirs")
    expected = SentenceTransformer(str(tmp_path / "theirs"), device="cpu").encode(case.texts)
    zoo.pickle_weights(tmp_path / "theirs" / "0_Transformer")
    with pytest.raises(BertsmithError, match="bertsmith import") as error:
        bertsmith.load(tmp_path / "theirs", device="cpu")
    assert f"bertsmith import {tmp_path / 'theirs'} -o" in str(error.value)
    import_folder(tmp_path / "theirs", tmp_path / "imported")
    found = bertsmith.load(tmp_path / "imported", device="cpu").encode(case.texts)
    np.testing.assert_allclose(found, expected, atol=TOLERANCE)


UNSUPPORTED: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "weighted mean": ("1_Pooling/config.json", {"pooling_mode": "weightedmean"}, ("weightedmean", "mean_sqrt_len")),
    "last token": ("1_Pooling/config.json", {"pooling_mode": "lasttoken"}, ("lasttoken",)),
    "two poolings": ("1_Pooling/config.json", {"pooling_mode": ["mean", "max"]}, ("mean", "max")),
    "tokenizer arguments": ("sentence_bert_config.json", {"tokenizer_args": {"x": 1}}, ("tokenizer_args",)),
    "another task": ("sentence_bert_config.json", {"transformer_task": "fill-mask"}, ("transformer_task",)),
    "query length": ("sentence_bert_config.json", {"query_length": 9}, ("query_length",)),
    "sparse encoder": ("config_sentence_transformers.json", {"model_type": "SparseEncoder"}, ("model_type",)),
    "unknown default": ("config_sentence_transformers.json", {"default_prompt_name": "x"}, ("default_prompt_name",)),
    "GELU": ("2_Dense/config.json", {"activation_function": "torch.nn.modules.activation.GELU"}, ("GELU",)),
    "residual": ("2_Dense/config.json", {"use_residual": True}, ("use_residual",)),
    "another size": ("2_Dense/config.json", {"out_features": 7}, ("2_Dense",)),
    "token input": ("2_Dense/config.json", {"module_input_name": "token_embeddings"}, ("module_input_name",)),
}
OTHER_MODULES = ("LSTM", "WordWeights", "CNN", "LayerNorm", "WeightedLayerPooling", "Router")


@pytest.fixture(scope="module")
def dense_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dense") / "theirs"
    write_sentence_transformer(SentenceCase(dense=("Tanh",), prompts=PROMPTS), folder)
    return folder


@pytest.mark.parametrize("name", [*UNSUPPORTED, *OTHER_MODULES, "a class of its own"])
def test_embeddings_that_would_differ_are_refused_in_one_line(name: str, dense_folder: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(dense_folder, tmp_path / "theirs")
    words: tuple[str, ...] = (name,)
    if name in UNSUPPORTED:
        file, changes, words = UNSUPPORTED[name]
        zoo.write_json(folder / file, json.loads((folder / file).read_text()) | changes)
    else:
        modules = json.loads((folder / "modules.json").read_text())
        kind = f"sentence_transformers.models.{name}" if name in OTHER_MODULES else "custom_module.Transformer"
        words = (kind.removeprefix("sentence_transformers.models."),)
        number = 1 if name in OTHER_MODULES else 0
        modules[number] = modules[number] | {"type": kind}
        zoo.write_json(folder / "modules.json", modules)
    predictor = bertsmith.load(folder, device="cpu")
    with pytest.raises(BertsmithError) as error:
        predictor.encode("the cat")
    one_line(error, *words)
    with pytest.raises(BertsmithError) as error:
        export_sentence_transformers(folder, tmp_path / "ours")
    one_line(error, *words)
    assert any(words[0] in note for note in import_folder(folder, tmp_path / "imported").notes)


def test_prompts_that_do_not_exist_or_are_not_pooled_are_refused(dense_folder: Path, tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    folder = shutil.copytree(dense_folder, tmp_path / "theirs")
    with pytest.raises(BertsmithError) as error:
        bertsmith.load(folder, device="cpu").encode("the cat", prompt="qeury")
    one_line(error, "qeury", "'query'", "'passage'")
    config = folder / "1_Pooling" / "config.json"
    zoo.write_json(config, json.loads(config.read_text()) | {"include_prompt": False})
    predictor = bertsmith.load(folder, device="cpu")
    expected = SentenceTransformer(str(folder), device="cpu").encode("the cat")
    np.testing.assert_allclose(predictor.encode("the cat"), expected, atol=TOLERANCE)
    with pytest.raises(BertsmithError) as error:
        predictor.encode("the cat", prompt="query")
    one_line(error, "include_prompt=false")
    with pytest.raises(BertsmithError, match="token ids"):
        bertsmith.load(dense_folder, device="cpu").embed_ids([[5, 6]], prompt="query")


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
    (folder / "pytorch_model-00002-of-00002.bin").unlink()


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
    "missing shard": (Case("bert"), refuse_pickled_index, ("pytorch_model-00002-of-00002.bin",)),
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
    "a tokenizer class with code of its own": (
        Case("bert", "korean", "vocab"),
        lambda folder: zoo.write_json(folder / "tokenizer_config.json", {"tokenizer_class": "KoBertTokenizer"}),
        ("KoBertTokenizer", "tokenizer.json"),
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
        lambda folder: (folder / "model-00002-of-00002.safetensors").unlink(),
        ("model-00002-of-00002.safetensors is missing",),
    ),
    "RoFormer's narrow embeddings": (
        Case("roformer"),
        refuse_narrow_roformer,
        ("factorised", "embeddings_project", "RoFormer"),
    ),
    "local attention": (
        Case("modernbert"),
        lambda folder: zoo.change_config(
            folder, layer_types=["full_attention", "sliding_attention"], global_attn_every_n_layers=2, local_attention=8
        ),
        ("local attention", "local_attention=8"),
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


def test_a_head_that_is_not_supported_is_listed(tmp_path: Path) -> None:
    zoo.write(Case("modernbert", head=zoo.TEXT), tmp_path / "theirs")
    predictor = bertsmith.load(tmp_path / "theirs", device="cpu")
    assert not predictor.model.objectives
    assert predictor.facts is not None
    assert any("unused weights: classifier.bias" in note for note in predictor.facts.notes)
    with pytest.raises(BertsmithError, match="head"):
        predictor.predict("the cat")
