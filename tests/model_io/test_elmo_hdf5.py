"""ELMo's published folders: equal to an implementation in NumPy, with the state carried from batch to batch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command_line import call
from encoders.elmo_reference import Reference, options, random_weights, write_fixture, write_folder
from inference.predictor_fixtures import reader

from bertsmith import load
from bertsmith.data.collate import collate
from bertsmith.errors import BertsmithError, DataError
from bertsmith.model_io.elmo_hdf5 import read_elmo, words_tokenizer
from bertsmith.model_io.folder_tokenizer import spelling
from bertsmith.model_io.importers import import_folder
from bertsmith.tasks import tagging

h5py = pytest.importorskip("h5py")

WORDS = ["The", "smith", "heats", "Iron", "ünï", "你好", "x" * 200, "-", "1,000.5"]


def sentences(seed: int, rows: int) -> list[list[str]]:
    random = np.random.default_rng(seed)
    return [[WORDS[n] for n in random.integers(0, len(WORDS), random.integers(1, 9))] for _ in range(rows)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    settings = options()
    return write_folder(tmp_path / "published", settings, random_weights(settings))


@pytest.mark.parametrize(
    "settings",
    [options(), options(skip=False), options(activation="tanh", highway=0)],
    ids=["skip connections", "no skip connections", "tanh, no highway"],
)
def test_ten_batches_with_carried_state(tmp_path: Path, settings: dict[str, Any]) -> None:
    weights = random_weights(settings)
    import_folder(write_folder(tmp_path / "published", settings, weights), tmp_path / "model")
    model = load(tmp_path / "model", device="cpu")
    stateful, reference = model.stateful(), Reference(settings, weights)
    clipped = 0.0
    for number in range(10):
        batch = sentences(number, rows=3 if number != 4 else 2)  # the third row stays as it was
        found = stateful.encode([" ".join(sentence) for sentence in batch])
        for one, expected in zip(found, reference.batch(batch), strict=True):
            assert one.shape == expected.shape
            assert np.abs(one - expected).max() < 1e-5
            clipped += float(np.mean(np.abs(expected[1]) == settings["lstm"]["proj_clip"]))
    assert clipped > 1, "projections are clipped"
    stateful.reset()
    first = Reference(settings, weights).batch(sentences(0, rows=3))
    again = stateful.encode([" ".join(sentence) for sentence in sentences(0, rows=3)])
    assert max(np.abs(one - other).max() for one, other in zip(again, first, strict=True)) < 1e-5


@pytest.mark.parametrize("skip", [True, False], ids=["skip connections", "no skip connections"])
def test_the_fixtures_of_the_original_release(tmp_path: Path, skip: bool) -> None:
    """Sentences that are tokenized at white space, in ten consecutive batches of three rows of unequal length."""
    settings = options(skip=skip)
    folder = write_fixture(tmp_path / "elmo", settings, random_weights(settings))
    done = call("import", folder, "-o", tmp_path / "model")
    assert done.returncode == 0, done.stderr
    stateful = load(tmp_path / "model", device="cpu").stateful()
    columns = json.loads((folder / "sentences.json").read_text())
    unequal = 0
    for number, batch in enumerate(zip(*columns, strict=True)):
        words = [sentence.split() for sentence in batch]
        unequal += len({len(one) for one in words}) == 3
        found = stateful.encode(words if number % 2 else batch)
        for row, one in enumerate(found):
            with h5py.File(folder / f"lm_embeddings_{row}.hdf5") as file:
                expected = np.concatenate(file[str(number)][...], -1)  # [directions, tokens, P] -> [tokens, 2 P]
            assert one[-1, 1:-1].shape == expected.shape == (len(words[row]), 12)
            np.testing.assert_allclose(one[-1, 1:-1], expected, rtol=0, atol=1e-5)
    assert unequal >= 5, "rows have the state after their own last token"


def test_predictions_are_stateless_unless_state_is_asked_for(folder: Path, tmp_path: Path) -> None:
    import_folder(folder, tmp_path / "model")
    model = load(tmp_path / "model", device="cpu")
    text = "The smith heats Iron"
    one, other = (model.embed_all([text, "- -"]).vectors[0] for _ in range(2))
    assert np.array_equal(one, other)
    stateful = model.stateful()
    fresh, carried = (stateful.encode([text])[0] for _ in range(2))
    assert np.abs(fresh[-1] - one).max() < 1e-6
    assert np.abs(carried[-1] - one).max() > 1e-2


def test_the_encoder_in_float64(folder: Path) -> None:
    model, notes = read_elmo(folder)
    assert not notes
    tokenizer = spelling(words_tokenizer())
    batch = sentences(3, rows=4)
    rows = [tokenizer.frame(tokenizer.encode(" ".join(one)), max_length=50) for one in batch]
    packed = collate(rows, length=30, pack=True)
    assert len(packed.input_ids) < len(rows)
    with torch.no_grad():
        layers = torch.stack(model.double().encoder(packed, return_layers=True).layers).numpy()
    settings = options()
    expected = Reference(settings, random_weights(settings)).batch(batch)
    for number, one in enumerate(expected):
        begin = int(packed.cls_positions[number])
        assert np.abs(layers[:, begin : begin + one.shape[1]] - one).max() < 1e-10


def test_the_command_line(folder: Path, tmp_path: Path) -> None:
    done = call("import", folder, "-o", tmp_path / "model", "--json")
    assert done.returncode == 0, done.stderr
    texts = tmp_path / "texts.txt"
    texts.write_text("zyzzyva quux\nzyzzyvas quux\n")
    done = call("embed", tmp_path / "model", texts, "-o", tmp_path / "vectors.npy")
    assert done.returncode == 0, done.stderr
    assert "unknown" not in done.stderr, "no word is unknown to an encoder that reads characters"
    one, other = np.load(tmp_path / "vectors.npy")
    assert np.abs(one - other).max() > 1e-3


def test_a_warning_about_equal_words_is_one_line(folder: Path, tmp_path: Path) -> None:
    import_folder(folder, tmp_path / "model")
    (tmp_path / "texts.txt").write_text(f"{'x' * 48}a {'x' * 48}b\n")
    done = call("embed", tmp_path / "model", tmp_path / "texts.txt", "-o", tmp_path / "vectors.npy", "-q")
    assert done.returncode == 0, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("bertsmith: warning: words that are equal in their first 48 bytes get the same vector")


def test_wrong_folders(folder: Path, tmp_path: Path) -> None:
    path = folder / "tiny_options.json"
    settings = json.loads(path.read_text())
    for change, message in (
        ({"lstm": {**settings["lstm"], "dim": 11}}, "W_0 is float32 [12, 40], but its options require floats"),
        ({"lstm": {**settings["lstm"], "n_layers": 3}}, "has no array RNN_0/RNN/MultiRNNCell/Cell2"),
        ({"lstm": 3}, "lstm=3 must be a table"),
        ({"char_cnn": None}, "a model of word ids has no character CNN"),
        ({"char_cnn": {**settings["char_cnn"], "n_characters": 99}}, "n_characters=99 must be 261 or 262"),
        ({"char_cnn": {**settings["char_cnn"], "filters": [[1]]}}, "must be a list of pairs"),
        ({"char_cnn": {**settings["char_cnn"], "activation": "swoosh"}}, "swoosh"),
    ):
        path.write_text(json.dumps(settings | change))
        with pytest.raises(DataError, match=r".") as caught:
            import_folder(folder, tmp_path / "model")
        assert message in str(caught.value)
    path.write_text(json.dumps(settings))
    weights = folder / "tiny_weights.hdf5"
    whole = weights.read_bytes()
    for data in (b"nonsense", whole[: len(whole) // 2], b""):
        weights.write_bytes(data)
        with pytest.raises(DataError, match=r"download it again|cannot be read|not an HDF5"):
            import_folder(folder, tmp_path / "model")
    weights.write_bytes(whole)
    with h5py.File(weights, "a") as file:
        del file["char_embed"]
        file["char_embed"] = h5py.ExternalLink("/etc/hostname", "x")
    with pytest.raises(DataError, match="has no array char_embed"):
        import_folder(folder, tmp_path / "model")


CONLL = [
    [("The", "O"), ("U.S.", "B-LOC"), ("pays", "O"), ("$", "O"), ("1\u00a0000.5", "O"), (".", "O")],
    [
        ("Ms.", "O"),
        ("Haag", "B-PER"),
        ("did", "O"),
        ("n't", "O"),
        ("leave", "O"),
        ("U.S.-ruled", "O"),
        ("Guam", "B-LOC"),
    ],
]


def spelled(characters: Any) -> list[str]:
    """The words of a row of characters, without the marks around the text."""
    return [bytes(row[row < 256].astype(np.uint8).tolist()).decode() for row in characters[1:-1]]


@pytest.mark.parametrize("context", ["sentence", "document"])
def test_the_words_of_a_column_file_are_the_tokens_of_a_tagger(folder: Path, tmp_path: Path, context: str) -> None:
    import_folder(folder, tmp_path / "model")
    lines = ["".join(f"{word}\t{label}\n" for word, label in sentence) for sentence in CONLL]
    (tmp_path / "train.conll").write_text("-DOCSTART-\tO\n\n" + "\n".join(lines), encoding="utf-8")
    task = tagging.Config(context="document" if context == "document" else "sentence").build(
        files={"train": tmp_path / "train.conll"}
    )
    examples, model = task.examples("train"), load(tmp_path / "model", device="cpu")
    features = task.rows(examples, model.tokenizer, max_length=64)
    sentences = [[word for word, _ in sentence] for sentence in CONLL]
    expected = sentences if context == "sentence" else [[*sentences[0], *sentences[1]]]
    for one, words in zip(features, expected, strict=True):
        assert spelled(one.rows[0].characters) == words
        assert one.indices is not None
        assert one.indices.tolist() == [*range(1, len(words) + 1)]


def test_a_fine_tuned_tagger_labels_the_words_of_a_column_file(folder: Path, tmp_path: Path) -> None:
    import_folder(folder, tmp_path / "model")
    words = [[word.replace("\u00a0", "") for word, _ in sentence] for sentence in CONLL]
    lines = [
        "".join(f"{word} {label}\n" for word, (_, label) in zip(*one, strict=True))
        for one in zip(words, CONLL, strict=True)
    ]
    (tmp_path / "train.conll").write_text("\n".join(lines), encoding="utf-8")
    files = ("--train", tmp_path / "train.conll", "--dev", tmp_path / "train.conll", "-o", tmp_path / "run", "-q")
    done = call(
        "finetune", tmp_path / "model", "-t", "tagging", *files, "epochs=1", "head.recurrent_width=4", "max_length=32"
    )
    assert done.returncode == 0, done.stderr
    tagger = load(tmp_path / "run", device="cpu")
    assert tagger.tokenizer.fingerprint == load(tmp_path / "model", device="cpu").tokenizer.fingerprint
    by_words, by_text = (tagger.tag_words(given) for given in (words, [" ".join(one) for one in words]))
    assert [[one["word"] for one in sentence] for sentence in by_words] == words
    assert by_words == by_text


def test_files_are_chosen_by_their_contents(folder: Path, tmp_path: Path) -> None:
    weights, options_file = folder / "tiny_weights.hdf5", folder / "tiny_options.json"
    weights.rename(folder / "lm_weights.hdf5")
    options_file.rename(folder / "settings.json")
    (folder / "sentences.json").write_text('[["The smith"]]')
    (folder / "other.json").write_text('{"lstm": {}}')
    (folder / "damaged.json").write_text("{")
    (folder / "pointer.hdf5").write_text("version https://git-lfs.github.com/spec/v1\n")
    for name, array in (("lm_embeddings_0", "0"), ("elmo_softmax_weights", "softmax/W"), ("vectors", "embedding")):
        with h5py.File(folder / f"{name}.hdf5", "w") as file:
            file[array] = np.ones((2, 3), np.float32)
    assert not import_folder(folder, tmp_path / "model").notes
    (folder / "copy.hdf5").write_bytes((folder / "lm_weights.hdf5").read_bytes())
    (folder / "second.json").write_text((folder / "settings.json").read_text())
    with pytest.raises(DataError, match=r"char_cnn in 'second.json' and 'settings.json': expected one model"):
        import_folder(folder, tmp_path / "model", replace=True)
    (folder / "second.json").unlink()
    with pytest.raises(DataError, match=r"char_embed, .* in 'copy.hdf5' and 'lm_weights.hdf5': expected one model"):
        import_folder(folder, tmp_path / "model", replace=True)
    (folder / "copy.hdf5").unlink()
    (folder / "lm_weights.hdf5").unlink()
    with pytest.raises(
        DataError, match=r"no file \*.hdf5 with the weights .*'elmo_softmax_weights.hdf5'.*git lfs pull"
    ):
        import_folder(folder, tmp_path / "model", replace=True)
    (folder / "settings.json").rename(folder / "settings.txt")
    with pytest.raises(DataError, match=r"other.json: char_cnn=null must be a table .* a model of word ids"):
        import_folder(folder, tmp_path / "model", replace=True)
    (folder / "other.json").rename(folder / "other_options.json")
    (folder / "other_options.json").write_text("{}")
    with pytest.raises(DataError, match=r"no file \*.json with the tables lstm and char_cnn"):
        import_folder(folder, tmp_path / "model", replace=True)


def test_encoders_without_state_have_no_stateful_encoder() -> None:
    with pytest.raises(BertsmithError, match="this encoder has no state"):
        reader().stateful()
