"""Windows over passages and the answers that are read from them, against the reference rules written out in loops."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from tasks import squad_reference as reference

from bertsmith.errors import BertsmithError, ConfigError, DataError
from bertsmith.model_io.folder_tokenizer import spelling
from bertsmith.tasks.qa_answers import decode_answers, extended_to_words
from bertsmith.tasks.qa_windows import NO_ANSWER, QAConfig, Question, passage_windows
from bertsmith.tasks.question_answering import locate_answer
from bertsmith.tasks.task import Features
from bertsmith.tokenizers import training
from bertsmith.tokenizers.spelling import widened
from bertsmith.tokenizers.tokenizer import Tokenizer, kind

TEXT = (
    "The smith John Smith (1895-1943) heats the iron until it glows; then the hammer falls, and the anvil rings. "
    "Iron that cools too quickly becomes hard and breaks. The iron rings, the iron rings. "
)
KOREAN = "서울의 옛 대장간에는 망치 소리가 끊이지 않았다. 대장장이의 손은 거칠고 단단하다. "
ODD = "A cafe\u0301 👩\u200d🔧 by the re\u0301sume\u0301 👍🏽 of \u1112\u1161\u11ab\u1100\u116e\u11a8 and 각 ended "


@cache
def tokenizer(name: str = "wordpiece") -> Tokenizer:
    config = kind(name).config()
    return config.train(training.count_words([TEXT, KOREAN] * 3, config.word_splitter()), vocab_size=360)


def text_of(labelled: Features, passage: str) -> str:
    row = labelled.rows[0]
    first, last = labelled.target
    return passage[row.offsets[first, 0] : row.offsets[last, 1]].strip()


def perfect(labelled: list[Features]) -> list[np.ndarray]:
    result = []
    for one in labelled:
        logits = np.zeros((len(one.rows[0]), 2), np.float32)
        logits[list(one.target), [0, 1]] = 10
        result.append(logits)
    return result


def span(passage: str, answer: str, turn: int = 0) -> tuple[int, int]:
    begin = -1
    for _ in range(turn + 1):
        begin = passage.index(answer, begin + 1)
    return begin, begin + len(answer)


@pytest.mark.parametrize("length", [12, 24, 40, 200])
@pytest.mark.parametrize("stride", [1, 5, 128])
def test_windows_are_those_of_the_reference(length: int, stride: int) -> None:
    question, passage = "Who heats the iron?", TEXT * 2
    labelled = passage_windows([Question(question, passage)], tokenizer(), QAConfig(stride=stride), max_length=length)
    query, whole = tokenizer().encode(question), tokenizer().encode(passage)
    kept = min(len(query), (length - 3) // 2)
    expected = reference.windows(len(whole), length - kept - 3, stride)
    assert [one.start for one in labelled] == [window.start for window in expected]
    for one, window in zip(labelled, expected, strict=True):
        row, piece = one.rows[0], slice(window.start, window.start + window.length)
        cls, sep = tokenizer().start_id, tokenizer().separator_id
        assert row.ids.tolist() == [cls, *query.ids[:kept].tolist(), sep, *whole.ids[piece].tolist(), sep]
        assert row.segment_ids.tolist() == [0] * (kept + 2) + [1] * (window.length + 1)
        assert row.sequence_ids.tolist() == [-1, *[0] * kept, -1, *[1] * window.length, -1]
        assert row.offsets[kept + 2 : -1].tolist() == whole.offsets[piece].tolist()
        assert row.words[kept + 2 : -1].tolist() == whole.words[piece].tolist()
        assert row.truncated == (len(query) - kept, 0)
        assert len(row) <= length


def test_a_long_question_is_truncated() -> None:
    labelled = passage_windows(
        [Question("iron " * 100, TEXT)], tokenizer(), QAConfig(max_query_length=7), max_length=384
    )
    assert (labelled[0].rows[0].sequence_ids == 0).sum() == 7
    assert labelled[0].rows[0].truncated[0] == len(tokenizer().encode("iron " * 100)) - 7


@pytest.mark.parametrize("name", ["wordpiece", "byte_bpe", "unigram", "characters", "bpe"])
@pytest.mark.parametrize(
    ("passage", "answer"),
    [
        (TEXT, "1895"),
        (TEXT, "John Smith"),
        (TEXT, "The"),
        (TEXT, "the iron rings."),
        (KOREAN, "서울의"),
        (KOREAN, "망치 소리가"),
        (ODD, "cafe\u0301"),
        (ODD, "👩\u200d🔧"),
        (ODD, "re\u0301sume\u0301 👍🏽"),
        (ODD, "\u1112\u1161\u11ab\u1100\u116e\u11a8"),
        (ODD, "각"),
    ],
)
def test_targets_decode_to_the_exact_answer_text(name: str, passage: str, answer: str) -> None:
    where = span(passage, answer)
    for length in (24, 60, 384):
        labelled = passage_windows(
            [Question("what?", passage, where)], tokenizer(name), QAConfig(stride=8), max_length=length
        )
        result = [one for one in labelled if one.target != (0, 0)]
        assert result or length == 24  # many short tokens may not fit into the shortest window
        assert all(text_of(one, passage) == answer for one in result)
        if length > 24:  # in so short a window, the one with most context for the start may lack the end
            (best,) = decode_answers([passage], labelled, perfect(labelled), QAConfig(stride=8, max_answer_length=60))
            assert best.span is not None
            assert (best.span.text, best.span.start, best.span.end) == (answer, *where)


def test_targets_match_the_reference_for_answers_of_complete_tokens() -> None:
    def pieces(text: str) -> list[int]:
        return tokenizer().encode(text).ids.tolist()

    checked = 0
    for answer in ("1895", "John Smith", "(1895-1943)", "the iron", "hammer falls, and", "breaks."):
        where = span(TEXT, answer)
        (labelled,) = passage_windows([Question("what?", TEXT, where)], tokenizer(), QAConfig(), max_length=384)
        first = int((labelled.rows[0].sequence_ids == 1).argmax())
        assert (labelled.target[0] - first, labelled.target[1] - first) == reference.target(
            TEXT, answer, where[0], pieces
        )
        checked += 1
    assert checked == 6


def test_an_answer_that_occurs_twice_uses_its_offset() -> None:
    for turn in (0, 1):
        where = span(TEXT, "iron rings", turn)
        (labelled,) = passage_windows([Question("what?", TEXT, where)], tokenizer(), QAConfig(), max_length=384)
        assert labelled.rows[0].offsets[labelled.target[0], 0] == where[0]


def test_windows_without_the_answer_have_the_first_token_as_target() -> None:
    where = span(TEXT, "hammer falls")
    labelled = passage_windows([Question("what?", TEXT, where)], tokenizer(), QAConfig(stride=6), max_length=24)
    inside = [one for one in labelled if one.target != (0, 0)]
    assert 0 < len(inside) < len(labelled)
    whole = tokenizer().encode(TEXT).offsets
    first, last = (int(np.flatnonzero(whole[:, side] == where[side])[0]) for side in (0, 1))
    held = [int((one.rows[0].sequence_ids == 1).sum()) for one in labelled]
    fits = [one.start <= first and last < one.start + count for one, count in zip(labelled, held, strict=True)]
    assert fits == [one.target != (0, 0) for one in labelled]  # also at the very borders of windows
    none = passage_windows([Question("what?", TEXT, NO_ANSWER)], tokenizer(), QAConfig(stride=6), max_length=24)
    assert {one.target for one in none} == {(0, 0)}
    assert {one.target for one in passage_windows([Question("?", TEXT)], tokenizer(), QAConfig(), max_length=24)} == {
        None
    }


def test_answers_without_a_token_have_no_target() -> None:
    (labelled,) = passage_windows(
        [Question("what?", "iron \u200b iron", (5, 6))], tokenizer(), QAConfig(), max_length=40
    )
    assert labelled.target is None


def test_empty_questions_and_passages_still_get_an_answer() -> None:
    labelled = passage_windows(
        [Question("", TEXT), Question("what?", ""), Question("", "")], tokenizer(), QAConfig(), max_length=384
    )
    assert [one.example_index for one in labelled] == [0, 1, 2]
    logits = [np.zeros((len(one.rows[0]), 2), np.float32) for one in labelled]
    result = decode_answers([TEXT, "", ""], labelled, logits, QAConfig(), allow_no_answer=True)
    assert result[0].span is not None
    assert [(one.span, one.null_odds, len(one.best)) for one in result[1:]] == [(None, 0.0, 1)] * 2


def test_rows_of_many_questions_equal_those_of_single_questions() -> None:
    questions = [
        Question(f"what {turn}?", (TEXT, KOREAN, ODD)[turn % 3], (0, 3) if turn % 2 else None) for turn in range(9)
    ]
    together = passage_windows(questions, tokenizer(), QAConfig(stride=9), max_length=30)
    alone = [
        one
        for question in questions
        for one in passage_windows([question], tokenizer(), QAConfig(stride=9), max_length=30)
    ]
    assert len(together) == len(alone)
    for one, other in zip(together, alone, strict=True):
        assert (one.target, one.start) == (other.target, other.start)
        for name in ("ids", "segment_ids", "sequence_ids", "offsets", "words"):
            assert np.array_equal(getattr(one.rows[0], name), getattr(other.rows[0], name))


def test_rows_are_spelled_like_those_of_the_tokenizer() -> None:
    spelling_tokenizer = spelling(tokenizer())
    questions = [Question("what 쇠?", TEXT), Question("", KOREAN), Question("who", ODD)]
    for question in questions:
        (one, *_) = passage_windows([question], spelling_tokenizer, QAConfig(), max_length=200)
        encoded = [spelling_tokenizer.encode(text) for text in (question.text, question.passage)]
        expected = spelling_tokenizer.frame(encoded[0], encoded[1], max_length=200)
        assert np.array_equal(one.rows[0].ids, expected.ids)
        found, right = one.rows[0].characters, expected.characters
        assert found is not None
        assert right is not None
        width = max(found.shape[1], right.shape[1])
        assert np.array_equal(widened(found, width), widened(right, width))
    assert passage_windows(questions, tokenizer(), QAConfig(), max_length=200)[0].rows[0].characters is None


@pytest.mark.parametrize("null", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_n_best_answers_match_the_reference(seed: int, null: bool) -> None:
    chance = np.random.default_rng(seed)
    config = QAConfig(stride=int(chance.integers(3, 14)), n_best=int(chance.integers(2, 21)), max_answer_length=7)
    passages = [TEXT, KOREAN, TEXT * 3, "iron", ODD * 2]
    questions = [Question("who heats it?", passage) for passage in passages]
    labelled = passage_windows(questions, tokenizer(), config, max_length=int(chance.integers(20, 60)))
    logits = [chance.normal(size=(len(one.rows[0]), 2)).round(1).astype(np.float32) * 2 for one in labelled]  # ties too
    shuffled = chance.permutation(len(labelled)).tolist()
    result = decode_answers(
        passages,
        [labelled[turn] for turn in shuffled],
        [logits[turn] for turn in shuffled],
        config,
        allow_no_answer=null,
    )
    for number, passage in enumerate(passages):
        own = [turn for turn, one in enumerate(labelled) if one.example_index == number]
        sides = [labelled[turn].rows[0].sequence_ids == 1 for turn in own]
        spans = [reference.Window(labelled[turn].start, int(side.sum())) for turn, side in zip(own, sides, strict=True)]
        offsets: dict[int, list[int]] = {}
        for turn, side, window in zip(own, sides, spans, strict=True):
            offsets |= dict(enumerate(labelled[turn].rows[0].offsets[side].tolist(), start=window.start))
        texts, odds = reference.predict(
            passage,
            [offsets[token] for token in range(len(offsets))],
            spans,
            [int(side.argmax()) for side in sides],
            [logits[turn].astype(float).tolist() for turn in own],
            n_best=config.n_best,
            longest=config.max_answer_length,
            null=null,
        )
        assert [answer.text for answer in result[number].best] == [text for text, _ in texts]
        assert [answer.probability for answer in result[number].best] == pytest.approx([share for _, share in texts])
        if null:
            assert result[number].null_odds == odds
        for answer in result[number].best:
            assert passage[answer.start : answer.end] == answer.text


@pytest.mark.parametrize(
    ("passage", "full"),
    [
        ("the [smith]s", "smiths"),
        ("hammer[ing] iron", "hammering"),
        ("Newt[on]'s law, 1687", "Newton"),
        ("over [1],700.5 km", "1,700.5"),
        ("in [2000], and", "2000"),
        ("the [caf]e\u0301.", "cafe\u0301"),
        ("[हि]न्दी है", "हिन्दी"),
        ("東[京]都に", "京"),  # no spaces, so no words
        ("서[울]에서", "서울"),  # particles are not added, what comes before is
        ("[임수경]을 대표로", "임수경"),
        ("중국 B[TV]에서는", "BTV"),
        ("보안법 제[7조]5항", "7조"),
        ("2019[년]에", "2019년"),
        ("[그\u1105\u1161]\u11ab 말", "그\u1105\u1161\u11ab"),  # decomposed: never within a syllable
    ],
)
def test_spans_are_extended_to_full_words(passage: str, full: str) -> None:
    begin, end = passage.index("["), passage.index("]") - 1
    text = passage.replace("[", "").replace("]", "")
    ((first, after),) = extended_to_words(text, np.array([[begin, end]], np.int32)).tolist()
    assert text[first:after] == full


def test_nan_logits_are_an_error() -> None:
    labelled = passage_windows([Question("what?", "iron")], tokenizer(), QAConfig(), max_length=40)
    with pytest.raises(DataError, match="nan"):
        decode_answers(["iron"], labelled, [np.full((len(labelled[0].rows[0]), 2), np.nan, np.float32)], QAConfig())


@pytest.mark.parametrize(
    "changes", [{"stride": 0}, {"n_best": 0}, {"max_query_length": -1}, {"no_answer": float("nan")}]
)
def test_invalid_settings_are_errors(changes: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(changes))):
        QAConfig(**changes)  # type: ignore[arg-type]


def test_a_too_short_max_length_is_an_error() -> None:
    with pytest.raises(BertsmithError, match="length=4"):
        passage_windows([Question("what?", TEXT)], tokenizer(), QAConfig(), max_length=4)


@pytest.mark.parametrize(
    ("text", "start", "result"),
    [
        ("red iron", 4, (4, 12)),
        (" red iron", 3, (4, 12)),
        ("red\niron", 4, (4, 12)),  # white space may be written otherwise
        ("iron", 9, (8, 12)),  # the offset points into the word
        ("iron", 4, None),
        ("gold", 4, None),
        ("the", -1, None),
        (" ", 3, None),
        ("red", 99, None),
    ],
)
def test_locate_answer_checks_the_offset(text: str, start: int, result: tuple[int, int] | None) -> None:
    assert locate_answer("the red iron.", text, start) == result
