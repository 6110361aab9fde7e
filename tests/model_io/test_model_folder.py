"""Model folders: saving and loading, and folders of other libraries and versions."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from faults.broken_disks import QuickDisk
from faults.faulty_disks import FailingDisk
from model_io.folder_fixtures import (
    TABLE,
    Tensors,
    change_config,
    change_weights,
    folder,
    folder_in_memory,
    foreign,
    model,
    one_line,
    same_weights,
    tokenizer,
)
from safetensors.torch import load_file, save_file

from bertsmith.errors import BertsmithError, ConfigError, DataError, StorageError
from bertsmith.model_io.huggingface.bert import FAMILY
from bertsmith.model_io.model_folder import open_model, save_model, verify_folder
from bertsmith.objectives import masked_lm
from bertsmith.system.durable import Disk

HEADS = [(), ("masked_lm",), ("next_sentence",), ("masked_lm", "next_sentence"), ("causal_lm",)]
HEADS += [("classify",), ("regress",), ("tag",), ("span",), ("choose",)]


# --- save and load ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("heads", HEADS, ids="+".join)
def test_weights_and_tokenizer_survive_saving_and_loading(heads: tuple[str, ...], tmp_path: Path) -> None:
    ours = model(*heads, causal="causal_lm" in heads)
    save_model(ours, tokenizer(), tmp_path / "m")
    again, words, facts = open_model(tmp_path / "m")
    same_weights(ours, again)
    assert again.encoder.config == ours.encoder.config
    assert words.fingerprint == tokenizer().fingerprint
    assert facts.verified
    assert facts.notes == ()
    assert not again.training


def test_encoder_settings_survive_saving_and_loading(tmp_path: Path) -> None:
    changes = {"activation": "relu", "layer_norm_eps": 1e-6, "dropout": 0.0, "attention_dropout": 0.2, "padding_id": 3}
    ours = model("masked_lm", segment_types=3, initializer_range=0.5, pooler=False, **changes)
    save_model(ours, tokenizer(), tmp_path / "m")
    again, _, _ = open_model(tmp_path / "m")
    assert again.encoder.config == ours.encoder.config
    same_weights(ours, again)


def test_the_same_model_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a/model", "b/model"):
        folder(tmp_path / name)
    files = sorted(os.listdir(tmp_path / "a/model"))
    assert {"config.json", "model.safetensors", "tokenizer.json", "vocab.txt", "README.md", "checksums.json"} < set(
        files
    )
    for name in files:
        assert (tmp_path / "a/model" / name).read_bytes() == (tmp_path / "b/model" / name).read_bytes()


def test_half_precision_is_kept_on_disk_and_opened_as_float(tmp_path: Path) -> None:
    for kind in (torch.float16, torch.bfloat16, torch.float64):
        ours = model("masked_lm").to(kind)
        save_model(ours, tokenizer(), tmp_path / str(kind))
        written = load_file(tmp_path / str(kind) / "model.safetensors")
        assert {value.dtype for value in written.values()} == {kind}
        assert json.loads((tmp_path / str(kind) / "config.json").read_text())["dtype"] == str(kind).removeprefix(
            "torch."
        )
        again, _, facts = open_model(tmp_path / str(kind))
        same_weights(ours.float(), again)
        assert "stored as" in facts.notes[0]


def test_wanted_type_of_the_weights(tmp_path: Path) -> None:
    again, _, _ = open_model(folder(tmp_path / "m", "masked_lm"), new_heads=["next_sentence"], dtype=torch.float64)
    assert {value.dtype for value in again.parameters()} == {torch.float64}


def test_objectives_mask_with_the_tokenizer_of_the_folder(tmp_path: Path) -> None:
    settings = masked_lm.Config(mask_probability=0.5, units="words")
    again, words, _ = open_model(folder(tmp_path / "m"), objectives=[settings], seed=3)
    hiding = again.objectives["masked_lm"]
    assert isinstance(hiding, masked_lm.MaskedLM)
    assert hiding.config == settings
    assert hiding.mask_id == words.mask_id
    assert not set(hiding.ordinary.tolist()) & words.special_ids
    assert [words.id_to_token(number) for number in hiding.continues.nonzero().flatten().tolist()] == [
        token for token in words.tokens() if token.startswith("##")
    ]


def test_the_tokenizer_truncates_at_the_models_positions(tmp_path: Path) -> None:
    _, words, _ = open_model(folder(tmp_path / "m", max_positions=17))
    assert words.max_length == 17
    assert json.loads((tmp_path / "m" / "tokenizer_config.json").read_text())["model_max_length"] == 17
    path = foreign(tmp_path / "n", max_positions=17)
    settings = json.loads((path / "tokenizer_config.json").read_text()) | {"model_max_length": 10**30}
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    assert open_model(path)[1].max_length == 17


# --- replacing -----------------------------------------------------------------------------------------------------


def test_an_existing_folder_is_replaced_only_on_request(tmp_path: Path) -> None:
    path = folder(tmp_path / "m")
    with pytest.raises(BertsmithError, match=r"m exists"):
        folder(path)
    newer = model("masked_lm", seed=5)
    save_model(newer, tokenizer(), path, replace=True)
    same_weights(open_model(path)[0], newer)
    assert os.listdir(tmp_path) == ["m"]
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "dear.txt").write_text("…")
    with pytest.raises(BertsmithError, match="is not a model folder and is not replaced"):
        save_model(newer, tokenizer(), tmp_path / "letters", replace=True)
    (tmp_path / "empty").mkdir()
    save_model(newer, tokenizer(), tmp_path / "empty")


def test_a_full_disk_leaves_the_old_model() -> None:
    old, newer = model("masked_lm"), model("masked_lm", seed=5)
    with folder_in_memory() as place:
        path, steps, landed = place / "m", FailingDisk(-1, "ENOSPC"), 0
        save_model(old, tokenizer(), path)
        save_model(old, tokenizer(), path, replace=True, disk=steps)
        for number in range(steps.done):
            try:
                save_model(newer, tokenizer(), path, replace=True, disk=FailingDisk(number, "ENOSPC"))
            except StorageError:
                landed += 1
            found = open_model(path if path.is_dir() else place / "m.retired")[0]
            assert _equal(found, old) or _equal(found, newer), number
            if not path.is_dir():
                with pytest.raises(DataError, match=r"its previous contents are in .*m\.retired"):
                    open_model(path)
            save_model(old, tokenizer(), path, replace=True, disk=QuickDisk())
            assert os.listdir(place) == ["m"]
        assert landed == steps.done > 40


def _equal(first: torch.nn.Module, second: torch.nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def test_files_are_synced_before_the_folder_is_renamed(tmp_path: Path) -> None:
    """checksums.json names every file, and the rename comes after all of them are on the disk."""
    order: list[str] = []

    class Watching(Disk):
        def _fsync(self, descriptor: int, path: Path) -> None:
            order.append(path.name)

        def _rename(self, old: Path, new: Path) -> None:
            order.append(f"-> {new.name}")
            os.rename(old, new)

    save_model(model(), tokenizer(), tmp_path / "m", disk=Watching())
    written = set(os.listdir(tmp_path / "m"))
    assert order[-2:] == ["checksums.json", "-> m"]
    assert set(order[:-1]) == written
    assert set(json.loads((tmp_path / "m" / "checksums.json").read_text())["files"]) == written - {"checksums.json"}


# --- folders of others ---------------------------------------------------------------------------------------------


def old_names(tensors: Tensors) -> Tensors:
    return {
        re.sub(r"LayerNorm\.bias$", "LayerNorm.beta", re.sub(r"LayerNorm\.weight$", "LayerNorm.gamma", name)): value
        for name, value in tensors.items()
    }


def without_prefix(tensors: Tensors) -> Tensors:
    return {name.removeprefix("bert."): value for name, value in tensors.items()}


def with_buffers_and_copies(tensors: Tensors) -> None:
    tensors["bert.embeddings.position_ids"] = torch.arange(40)[None]
    tensors["bert.embeddings.token_type_ids"] = torch.zeros(1, 40, dtype=torch.int64)
    tensors["cls.predictions.decoder.weight"] = tensors[TABLE].clone()
    tensors["cls.predictions.decoder.bias"] = tensors["cls.predictions.bias"].clone()


def bias_of_the_decoder_only(tensors: Tensors) -> None:
    tensors["cls.predictions.decoder.bias"] = tensors.pop("cls.predictions.bias")


@pytest.mark.parametrize("change", [old_names, without_prefix, with_buffers_and_copies, bias_of_the_decoder_only])
def test_older_weight_names(change: Callable[[Tensors], Any], tmp_path: Path) -> None:
    ours = model("masked_lm", "next_sentence")
    path = foreign(tmp_path / "m")
    change_weights(path, change)
    again, _, facts = open_model(path)
    same_weights(ours, again)
    assert not facts.verified
    assert facts.notes == ()


def split(path: Path, tensors: Tensors) -> dict[str, str]:
    """model.safetensors in three files with an index, as transformers writes large models."""
    (path / "model.safetensors").unlink()
    where = {name: f"model-{number % 3}.safetensors" for number, name in enumerate(sorted(tensors))}
    for file in set(where.values()):
        save_file({name: value for name, value in tensors.items() if where[name] == file}, path / file)
    (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    return where


def test_several_files_with_an_index(tmp_path: Path) -> None:
    path = foreign(tmp_path / "m")
    where = split(path, load_file(path / "model.safetensors"))
    same_weights(open_model(path)[0], model("masked_lm", "next_sentence"))
    index = path / "model.safetensors.index.json"
    other = {**where, TABLE: "model-0.safetensors" if where[TABLE] != "model-0.safetensors" else "model-1.safetensors"}
    index.write_text(json.dumps({"weight_map": other}))
    with pytest.raises(DataError) as found:
        open_model(path)
    one_line(found, "does not list there")
    index.write_text(json.dumps({"weight_map": where | {"more": "model-0.safetensors"}}))
    with pytest.raises(DataError, match=r"model-0\.safetensors lacks 'more'"):
        open_model(path)


def test_a_snapshot_of_the_hub_cache_opens(tmp_path: Path) -> None:
    path = tmp_path / "models--x--y" / "snapshots" / "0a1b"
    foreign(path)
    blobs = tmp_path / "models--x--y" / "blobs"
    blobs.mkdir()
    for file in list(path.iterdir()):
        file.rename(blobs / file.name)
        file.symlink_to(Path("../../blobs") / file.name)
    same_weights(open_model(path)[0], model("masked_lm", "next_sentence"))


def test_heads_with_weights_are_opened_without_an_architecture(tmp_path: Path) -> None:
    """bert-base-uncased says BertForMaskedLM and has the other head as well; folders of 2019 say nothing."""
    path = foreign(tmp_path / "m")
    for named in (["BertForMaskedLM"], ..., None):
        change_config(path, architectures=named, model_type=...)
        assert list(open_model(path)[0].objectives) == ["masked_lm", "next_sentence"]


# --- heads -----------------------------------------------------------------------------------------------------------


def test_requested_heads(tmp_path: Path) -> None:
    path = folder(tmp_path / "m")
    again, _, facts = open_model(path, objectives=["next_sentence"])
    assert len(facts.notes) == 1
    assert list(again.objectives) == ["next_sentence"]
    assert "unused weights: cls.predictions.bias" in facts.notes[0]
    assert list(open_model(path, objectives=())[0].objectives) == []
    with pytest.raises(ConfigError, match="next_sentence"):
        open_model(path, objectives=["next_sentense"])


def test_a_missing_head_is_an_error_unless_it_is_new(tmp_path: Path) -> None:
    path = folder(tmp_path / "m", "masked_lm", pooler=False)
    with pytest.raises(DataError) as found:
        open_model(path, objectives=["masked_lm", "next_sentence"])
    one_line(found, str(path), "bert.pooler.dense.bias", "cls.seq_relationship.weight", "--ignore-heads")
    torch.manual_seed(1)
    again, _, facts = open_model(path, new_heads=["next_sentence"])
    assert facts.notes == ("newly initialised: the head next_sentence, the pooler",)
    assert 0 < again.encoder.get_parameter("pooler.weight").std() < 0.03
    assert again.encoder.get_parameter("pooler.bias").eq(0).all()
    assert torch.equal(
        again.objectives["masked_lm"].bias, model("masked_lm", pooler=False).objectives["masked_lm"].bias
    )


def test_a_stored_head_is_initialised_on_request(tmp_path: Path) -> None:
    again, _, facts = open_model(folder(tmp_path / "m"), new_heads=["masked_lm"])
    assert again.objectives["masked_lm"].bias.eq(0).all()
    start = "newly initialised: the head masked_lm; unused weights: cls.predictions.bias, "
    assert facts.notes[0].startswith(start)
    assert len(facts.notes) == 1
    assert torch.equal(again.encoder.token_embeddings, model("masked_lm", "next_sentence").encoder.token_embeddings)


# --- checksums -----------------------------------------------------------------------------------------------------


def test_an_edited_card_gives_a_note(tmp_path: Path) -> None:
    path = folder(tmp_path / "m")
    assert verify_folder(path) == ()
    (path / "README.md").write_text("# My model\n")
    assert "README.md has 11 bytes" in open_model(path)[2].notes[0]
    with pytest.raises(DataError, match=r"README\.md has 11 bytes"):
        verify_folder(path)
    (path / "README.md").unlink()
    assert open_model(path)[2].notes == (f"{path / 'README.md'} was removed",)
    (path / "checksums.json").unlink()
    assert verify_folder(path) is None


def test_every_weight_has_a_name_in_transformers() -> None:
    ours = model("masked_lm", "next_sentence").state_dict()
    theirs = [name for mine in ours for name in FAMILY.transformers_names(mine)]
    assert len(theirs) == len(set(theirs)) == 5 + 2 * 16 + 2 + 5 + 2
