"""Questions with gold answers and predictions that are difficult to score, as functions of a seed."""

from __future__ import annotations

import random
from dataclasses import dataclass

PIECES = [
    *(
        "the",
        "The",
        "a",
        "A",
        "an",
        "AN",
        "theory",
        "another",
        "a-b",
        "the.",
        "'a'",
        "“the”",
        "İstanbul",
        "ß",
        "ẞ",
        "ﬁ",
    ),
    *("1895", "1,000", "U.S.", "C++", "don't", "don’t", "--", "...", "!?", "«»", "。", "x_y", "_the_", "$5", "%", "’s"),
    *(
        "é",
        "e\u0301",
        "가",
        "\u1100\u1161",
        "서울",
        "서울은",
        "《서울》",
        "〈가〉",
        "‘가’",
        "(가)",
        "<가>",
        "제1차",
        "👩‍👩‍👧",
        "🙂",
        "日本",
    ),
    *(
        "\u200b",
        "\u00a0",
        "\u3000",
        "\u2028",
        "\x1c",
        "\ufeff",
        "٣",
        "²",
        "Σ",
        "ς",
        "ΑΣ",
        "a\u0301",
        "the\u0301",
        "ａ",
        "ｔｈｅ",
    ),
]
GAPS = [" ", " ", " ", "", "  ", "\t", "\n", "\u00a0", "\u2009", "-"]


@dataclass(frozen=True)
class Questions:
    """The inputs of a scorer."""

    golds: dict[str, list[str]]
    predictions: dict[str, str]
    no_answer: dict[str, float]  # in another order, with many ties, and with ids of no question

    @property
    def data(self) -> list[dict[str, object]]:
        """The gold answers in the layout of a SQuAD file."""
        labelled = [{"id": name, "answers": [{"text": text} for text in texts]} for name, texts in self.golds.items()]
        half = len(labelled) // 2
        return [{"paragraphs": [{"qas": labelled[:half]}]}, {"paragraphs": [{"qas": labelled[half:]}]}]


def questions(seed: int, count: int, *, unanswerable: float = 0.0, missing: float = 0.0) -> Questions:
    """Random questions; a share of them has no answer, a share has no prediction."""
    draw = random.Random(seed)
    golds, predictions, no_answer = {}, {}, {}
    for number in range(count):
        name = f"{seed}-{number}"
        golds[name] = [] if draw.random() < unanswerable else [text(draw) for _ in range(draw.randint(1, 3))]
        if draw.random() >= missing:
            predictions[name] = _prediction(draw, golds[name])
        no_answer[name] = draw.choice([round(draw.gauss(0, 2), 1), 0.0, draw.random(), -3.0])
    names = [*no_answer, "nobody", "asked"]
    draw.shuffle(names)
    return Questions(golds, predictions, {name: no_answer.get(name, 0.0) for name in names})


def text(draw: random.Random) -> str:
    """Up to six pieces with unusual separators; may be empty, also only after normalisation."""
    return "".join(draw.choice(PIECES) + draw.choice(GAPS) for _ in range(draw.randint(0, 6)))


def _prediction(draw: random.Random, golds: list[str]) -> str:
    kind = draw.random()
    if kind < 0.2:
        return ""
    if kind < 0.8 and golds:
        gold = draw.choice(golds)
        return draw.choice(
            [gold, gold.upper(), f"the {gold}", f"{gold} {text(draw)}", gold[: len(gold) // 2], f"({gold})"]
        )
    return text(draw)
