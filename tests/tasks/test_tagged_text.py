"""From words to rows to entities: every word is classified exactly once; offsets refer to the original text."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tasks.samples import TEXTS, lines_of_json, written

from bertsmith.metrics import sequence_labelling
from bertsmith.tasks import conll, tagging
from bertsmith.tasks.tagged_text import WordFeatures, first_tokens, split_text, streams, token_windows
from bertsmith.tasks.task import Example, Features
from bertsmith.tasks.token_classification import TokenClassificationTask
from bertsmith.tokenizers import byte_bpe, training, unigram, wordpiece
from bertsmith.tokenizers.tokenizer import Tokenizer
from bertsmith.types import Encoded

LABELS = ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")
KINDS = {"wordpiece": wordpiece, "byte_bpe": byte_bpe, "unigram": unigram}
NAMES = "Ada of Seoul met José\u0301 and 대장장이 in Sa\u0303o Paulo 👩‍🔧 at noon"


@cache
def tokenizer(kind: str = "wordpiece") -> Tokenizer:
    settings: Any = KINDS[kind].Config()  # type: ignore[attr-defined]
    return settings.train(training.count_words((*TEXTS, NAMES), settings.word_splitter()), vocab_size=400)


def confident_logits(labelled: Features, labels: tuple[str, ...] = LABELS) -> NDArray[np.float32]:
    return 20 * np.eye(len(labels), dtype=np.float32)[labelled.target]


def in_use(unit: Any = "word", **settings: Any) -> TokenClassificationTask:
    return tagging.Config(unit=unit, **settings).build(files={}, labels=LABELS)


def column_task(path: Path, *sentences: list[tuple[str, str]], **settings: Any) -> TokenClassificationTask:
    lines = ["".join(f"{word}\t{tag}\n" for word, tag in sentence) for sentence in sentences]
    return tagging.Config(**settings).build(files={"train": written(path / "train.conll", "\n".join(lines))})


@given(tokens=st.integers(0, 400), size=st.integers(2, 60), overlap=st.integers(0, 80))
def test_every_token_is_read_once_in_the_window_with_the_most_context(tokens: int, size: int, overlap: int) -> None:
    result = token_windows(tokens, size=size, overlap=overlap)
    assert [token for _, first, end in result for token in range(first, end)] == list(range(tokens))
    for begin, first, end in result:
        assert begin <= first <= end <= begin + size
        for token in range(first, end):
            sides = [min(token - other, other + size - 1 - token) for other, _, _ in result]
            assert min(token - begin, begin + size - 1 - token) == max(sides)
    for (before, _, _), (begin, _, _) in pairwise(result):
        assert before + size - begin >= min(overlap, size // 2)


def test_a_long_sentence_is_split_into_windows_without_losing_words(tmp_path: Path) -> None:
    words = [(f"iron{'ed' * (number % 3)}", "B-PER" if number % 7 == 0 else "O") for number in range(300)]
    task = column_task(tmp_path, words)
    examples = task.examples("train")
    labelled = task.rows(examples, tokenizer(), max_length=32)
    assert len(labelled) > 10
    assert all(len(one.rows[0]) == 32 and one.rows[0].truncated == (0, 0) for one in labelled)
    assert [word for one in labelled if isinstance(one, WordFeatures) for word in one.words] == list(range(300))
    for one in labelled:
        assert one.indices is not None
        assert isinstance(one, WordFeatures)
        row = one.rows[0]
        firsts = [int(row.offsets[position, 0]) for position in one.indices]
        assert firsts == [examples[0].spans[word][0] for word in one.words]  # each word's first piece is read
        inner = one.indices[(one.words >= 40) & (one.words < 260)]
        assert ((inner > 5) & (inner < 26)).all()  # a quarter of the row on both sides at least
    assert task.reachable(examples, tokenizer(), max_length=32) == 1


def test_rows_too_short_for_a_word_are_an_error(tmp_path: Path) -> None:
    task = column_task(tmp_path, [("Ada", "B-PER")])
    with pytest.raises(ValueError, match="length=3 is too short"):
        task.rows(task.examples("train"), tokenizer(), max_length=3)


def documents(folder: Path, **settings: Any) -> TokenClassificationTask:
    sizes = {"a": [3, 4, 2], "b": [60], "c": [5, 5]}  # words of the sentences of each document
    text = ""
    for sentences in sizes.values():
        text += "-DOCSTART- -X- O O\n\n"
        for size in sentences:
            text += "".join(f"iron NN I-NP {'I-PER' if n % 3 == 0 else 'O'}\n" for n in range(size)) + "\n"
    for name in ("eng.train", "eng.testa"):
        written(folder / name, text)
    return conll.Config(name="conll2003", **settings).build(files={"data": folder})


def test_a_document_is_one_row_if_it_fits_and_every_word_is_read_once(tmp_path: Path) -> None:
    task = documents(tmp_path, context="document")
    assert task.max_length == 512
    examples = task.examples("dev")
    labelled = task.rows(examples, tokenizer(), max_length=512)
    assert [(one.example_index, len(one.rows[0])) for one in labelled] == [(0, 9 + 2), (3, 60 + 2), (4, 10 + 2)]
    assert [len(one.target) for one in labelled] == [9, 60, 10]
    short = task.rows(examples, tokenizer(), max_length=34)
    first = np.cumsum([0, *(len(example.spans) for example in examples)])
    numbers = [
        int(first[one.example_index]) + word for one in short if isinstance(one, WordFeatures) for word in one.words
    ]
    assert numbers == list(range(79))
    assert len(short) == 5  # 32 positions for words: document b needs three windows, the others one each
    alone = documents(tmp_path).rows(examples, tokenizer(), max_length=512)
    assert [one.example_index for one in alone] == [0, 1, 2, 3, 4, 5]


def test_documents_decode_completely(tmp_path: Path) -> None:
    task = documents(tmp_path, context="document")
    for length in (512, 34, 12):
        assert task.reachable(task.examples("dev"), tokenizer(), max_length=length) == 1


def test_document_context_needs_documents(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"train\.conll marks no documents.*context=sentence"):
        column_task(tmp_path, [("Ada", "B-PER")], context="document").examples("train")


def test_documents_of_tables_are_named_by_a_column(tmp_path: Path) -> None:
    rows = [{"tokens": ["Ada", "met"], "tags": ["B-PER", "O"], "page": page} for page in ("p", "p", "q", None, None)]
    path = lines_of_json(tmp_path / "train.jsonl", *rows)
    task = tagging.Config(context="document", document="page").build(files={"train": path})
    labelled = task.rows(task.examples("train"), tokenizer(), max_length=64)
    assert [(one.example_index, len(one.target)) for one in labelled] == [(0, 4), (2, 2), (3, 2), (4, 2)]


def test_words_without_a_token_are_outside_and_listed_unless_an_entity_continues(tmp_path: Path) -> None:
    sentence = [("\x01", "O"), ("Ada", "B-PER"), ("\u200b", "I-PER"), ("Seoul", "I-PER"), ("\x02", "O"), ("", "O")]
    task = column_task(tmp_path, sentence)
    examples = task.examples("train")
    assert [len(one.indices) for one in task.rows(examples, tokenizer(), max_length=32) if one.indices is not None] == [
        2
    ]
    labelled = task.rows(examples, tokenizer(), max_length=32)
    (prediction,) = task.decode(examples, labelled, [confident_logits(one, task.labels) for one in labelled])
    assert prediction.value == ("O", "B-PER", "I-PER", "I-PER", "O", "O")
    assert prediction.detail["unread"] == [0, 2, 4, 5]
    (entity,) = prediction.detail["entities"]
    assert examples[0].texts[0][entity["start"] : entity["end"]] == entity["text"] == "Ada \u200b Seoul"


def test_words_may_contain_white_space(tmp_path: Path) -> None:
    task = column_task(tmp_path, [("New York", "B-LOC"), ("10\u00a0000", "O"), ("Ada", "B-LOC")])
    (example,) = task.examples("train")
    assert example.texts == ("New York 10\u00a0000 Ada",)
    assert [example.texts[0][begin:end] for begin, end in example.spans] == ["New York", "10\u00a0000", "Ada"]
    assert task.reachable([example], tokenizer(), max_length=32) == 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("unit", ["word", "part", "character"])
def test_offsets_refer_to_the_original_text(kind: str, unit: str) -> None:
    task = in_use(unit)
    example = Example(id="0", texts=(NAMES,))
    spans = split_text(NAMES, unit)  # type: ignore[arg-type]
    positions = {
        name: (NAMES.index(name), NAMES.index(name) + len(name)) for name in ("Sa\u0303o Paulo", "👩‍🔧", "대장장이")
    }
    gold = ["O"] * len(spans)
    for begin, end in positions.values():
        inside = [word for word, (a, b) in enumerate(spans) if begin <= a and b <= end]
        gold[inside[0] : inside[-1] + 1] = ["B-LOC", *["I-LOC"] * (len(inside) - 1)]
    output = Example(id="0", texts=(NAMES,), gold=tuple(gold), spans=spans)
    labelled = task.rows([output], tokenizer(kind), max_length=64)
    (prediction,) = task.decode([example], labelled, [confident_logits(one) for one in labelled])
    result = {entity["text"]: (entity["start"], entity["end"]) for entity in prediction.detail["entities"]}
    assert result == positions
    assert {entity["kind"] for entity in prediction.detail["entities"]} == {"LOC"}
    assert all(0.99 < entity["score"] <= 1 for entity in prediction.detail["entities"])


def test_white_space_has_no_token_and_combining_marks_take_the_previous_token() -> None:
    text = "e\u0301 x\u200b\x01"
    example = Example(id="0", texts=(text,))
    (stream,) = streams([example], [split_text(text, "character")], by_document=False)
    offsets = np.array([[0, 1], [2, 4]], np.int32)  # accents stripped, and a token that takes the space before it
    encoded = Encoded(np.zeros(2, np.int32), offsets, np.arange(2, dtype=np.int32))
    nothing = Encoded(encoded.ids[:0], encoded.offsets[:0], encoded.words[:0])
    assert first_tokens(stream, encoded, characters=True).tolist() == [0, 0, -1, 1, 1, 1]
    assert first_tokens(stream, encoded, characters=False).tolist() == [0, -1, -1, 1, -1, -1]
    assert first_tokens(stream, nothing, characters=True).tolist() == [-1] * 6


@pytest.mark.parametrize(("words", "first"), [([0, 1, 1], 1), ([0, 1, 2], 2)])
def test_piece_of_the_space_before_a_word_is_its_first_token(words: list[int], first: int) -> None:
    """Offsets of byte-level BPE, which leave out the space; a line break is a word of its own."""
    (stream,) = streams([Example(id="0", texts=("a b",))], [((0, 1), (2, 3))], by_document=False)
    offsets = np.array([[0, 1], [2, 2], [2, 3]], np.int32)
    encoded = Encoded(np.zeros(3, np.int32), offsets, np.array(words, np.int32))
    assert first_tokens(stream, encoded, characters=False).tolist() == [0, first]


@pytest.mark.parametrize(
    ("text", "unit", "words"),
    [
        ("서울 漢字입니다 state-of-漢.", "word", "서울 漢 字 입니다 state-of- 漢 ."),
        ("北京。BERT", "part", "北 京 。 BERT"),
    ],
)
def test_ideographs_are_words_in_every_unit(text: str, unit: Any, words: str) -> None:
    assert [text[begin:end] for begin, end in split_text(text, unit)] == words.split()


def test_texts_without_words_give_the_same_rows_as_their_split_words() -> None:
    task = in_use()
    text = "Ada met state-of-the-art 쇠, twice!"
    alone = task.rows([Example(id="0", texts=(text,))], tokenizer(), max_length=64)
    given_words = task.rows(
        [Example(id="0", texts=(text,), spans=split_text(text, "word"))], tokenizer(), max_length=64
    )
    assert np.array_equal(alone[0].rows[0].ids, given_words[0].rows[0].ids)
    assert np.array_equal(alone[0].indices, given_words[0].indices)
    assert [text[begin:end] for begin, end in split_text(text, "word")] == [
        *("Ada", "met", "state-of-the-art", "쇠", ",", "twice", "!")
    ]


@pytest.mark.parametrize("text", ["", " \t ", "\u200b", "\x00"])
def test_texts_without_anything_to_read_have_no_entities(text: str) -> None:
    task = in_use("character")
    examples = [Example(id="0", texts=(text,)), Example(id="1", texts=("Ada",))]
    labelled = task.rows(examples, tokenizer(), max_length=16)
    assert [one.example_index for one in labelled] == [1]
    empty, _ = task.decode(examples, labelled, [np.zeros((len(one.indices), len(LABELS))) for one in labelled])  # type: ignore[arg-type]
    assert set(empty.value) <= {"O"}
    assert empty.detail["entities"] == []
    assert empty.score == 0


def test_characters_of_one_token_share_its_tag_and_only_the_first_begins() -> None:
    task = in_use("character")
    text = "hammer iron"
    gold = ("B-PER", *["I-PER"] * 5, "I-PER", "I-PER", "I-PER", "O", "O")  # ends within `iron`
    example = Example(id="0", texts=(text,), gold=gold)
    labelled = task.rows([example], tokenizer(), max_length=16)
    pieces = len(tokenizer().encode(text))
    assert pieces < 9
    assert len(labelled[0].target) == pieces
    (prediction,) = task.decode([example], labelled, [confident_logits(one) for one in labelled])
    assert prediction.value[:7] == gold[:7]
    assert prediction.value[7:] == ("I-PER",) * 4  # as exactly as pieces allow
    assert task.reachable([example], tokenizer(), max_length=16) == 0


def test_scores_match_the_metrics_and_lie_in_the_interval(tmp_path: Path) -> None:
    sentence = [("Ada", "B-PER"), ("of", "O"), ("Seoul", "B-LOC"), ("met", "O")]
    task = column_task(tmp_path, *[sentence] * 20)
    examples = task.examples("train")
    labelled = task.rows(examples, tokenizer(), max_length=32)
    answers = [confident_logits(one, task.labels) for one in labelled]
    for number in range(0, 20, 4):
        answers[number] = np.roll(answers[number], 1, axis=0)
    predictions = task.decode(examples, labelled, answers)
    gold = [list(example.gold) for example in examples]
    expected = sequence_labelling.score_entities(gold, [list(prediction.value) for prediction in predictions])
    scores = task.score(examples, predictions)
    assert 0.5 < scores["f1"] < 1
    assert scores["f1"] == expected.overall.f1
    assert scores["precision LOC"] == expected.by_type["LOC"].precision
    assert scores["accuracy"] == expected.accuracy
    interval = task.interval(examples, predictions)
    assert interval.value == pytest.approx(scores["f1"])
    assert interval.low < scores["f1"] < interval.high


def test_the_mean_over_types_has_an_interval_too(tmp_path: Path) -> None:
    lines = "".join(f"{c}\t{tag}\n" for c, tag in zip("쇠 iron", ["B-PS", "O", "B-LC", *["I-LC"] * 3], strict=True))
    path = written(tmp_path / "klue-ner-v1.1_dev.tsv", f"{lines}\n" * 12)
    task = conll.Config(name="klue-ner").build(files={"dev": path})
    examples = task.examples("dev")
    labelled = task.rows(examples, tokenizer(), max_length=32)
    answers = [confident_logits(one, task.labels) for one in labelled]
    for number in range(6):
        answers[number][1] = np.eye(len(task.labels))[0]  # `iron` is missed in half of the sentences
    predictions = task.decode(examples, labelled, answers)
    scores, interval = task.score(examples, predictions), task.interval(examples, predictions)
    assert scores["f1 LC"] == pytest.approx(2 / 3)
    assert scores["macro_f1"] == pytest.approx((1 + 2 / 3) / 2) == interval.value
    assert interval.low < interval.value < interval.high
    assert 0 < scores["character_macro_f1"] < 1
    assert scores["accuracy"] == pytest.approx((5 * 12 - 6 * 4) / (5 * 12))  # the space does not count


def test_sentences_without_entities_have_scores_too(tmp_path: Path) -> None:
    for name, path in (("klue-ner", "dev.tsv"), ("wnut17", "dev.conll")):
        task = conll.Config(name=name).build(files={"dev": written(tmp_path / path, "쇠\tO\n\n쇠\tO\n")})
        examples = task.examples("dev")
        labelled = task.rows(examples, tokenizer(), max_length=16)
        predictions = task.decode(examples, labelled, [confident_logits(one, task.labels) for one in labelled])
        assert task.score(examples, predictions)["accuracy"] == 1
        assert task.interval(examples, predictions).value == task.score(examples, predictions)[task.main_metric] == 0


def test_unknown_tags_cannot_be_scored() -> None:
    task = in_use()
    examples = [Example(id="0", texts=("Ada",), source="file:1")]
    labelled = task.rows(examples, tokenizer(), max_length=16)
    predictions = task.decode(examples, labelled, [np.zeros((1, len(LABELS)), np.float32)])
    with pytest.raises(ValueError, match="file:1: no tags"):
        task.score(examples, predictions)
