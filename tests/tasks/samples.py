"""A tiny made-up sample of every task, in the format of its files, for the contract tests.

`SAMPLES` has one entry for each family, or `family/member`: a function that writes files into a folder and returns the
task's `Config` with the files to build it from. Every sample has train and dev, and one text that is too long for 32
tokens.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bertsmith.tasks import (
    choice,
    classification,
    codah,
    commonsenseqa,
    conll,
    glue,
    korean,
    multi_label,
    multi_task,
    pairs,
    qa,
    regression,
    squad,
    swag,
    tagging,
)
from bertsmith.tasks.task import TaskConfig

Sample = Callable[[Path], tuple[TaskConfig, Mapping[str, Path]]]

LONG = "the smith heats the iron until it glows and then the hammer falls " * 4
TEXTS = (
    "The smith's hammer (1842) fell, twice!",
    "대장장이는 쇠를 두드린다 👩‍🔧.",
    "cafe\u0301 and 가나 in pieces \u1100\u1161",
    LONG,
    "iron",
    "쇠가 빨리 식으면 단단해진다",
)
PAIRS = tuple(zip(TEXTS, reversed(TEXTS), strict=True))
WORDS = ("contradiction", "entailment", "neutral") * 2


def written(path: Path, text: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def tabbed(path: Path, *rows: Any) -> Path:
    return written(path, "".join("\t".join(map(str, row)) + "\n" for row in rows))


def lines_of_json(path: Path, *items: Any) -> Path:
    return written(path, "".join(json.dumps(item) + "\n" for item in items))


def both(folder: Path, ending: str, write: Callable[[Path], Path]) -> dict[str, Path]:
    return {split: write(folder / f"{split}{ending}") for split in ("train", "dev")}


def own_texts(folder: Path) -> tuple[TaskConfig, Mapping[str, Path]]:
    rows = [("review", "stars"), *((f'"{text}"', number % 3) for number, text in enumerate(TEXTS))]
    text = "".join(f"{review},{stars}\n" for review, stars in rows)
    return classification.Config(), both(folder, ".csv", lambda path: written(path, text))


def own_pairs(folder: Path) -> tuple[TaskConfig, Mapping[str, Path]]:
    items = [
        {"premise": first, "hypothesis": second, "label": number % 2 == 0}
        for number, (first, second) in enumerate(PAIRS)
    ]
    return pairs.Config(), both(folder, ".jsonl", lambda path: lines_of_json(path, *items))


def own_numbers(folder: Path) -> tuple[TaskConfig, Mapping[str, Path]]:
    rows = [("text", "score"), *((text, number / 2) for number, text in enumerate(TEXTS))]
    return regression.Config(), both(folder, ".tsv", lambda path: tabbed(path, *rows))


def own_label_lists(folder: Path) -> tuple[TaskConfig, Mapping[str, Path]]:
    lists = ([], ["iron"], ["iron", "salt"], ["salt"], ["salt", "iron", "쇠"], ["쇠"])
    items = [{"text": text, "labels": labels} for text, labels in zip(TEXTS, lists, strict=True)]
    return multi_label.Config(), both(folder, ".jsonl", lambda path: lines_of_json(path, *items))


def own_choices(folder: Path) -> tuple[TaskConfig, Mapping[str, Path]]:
    items = [
        {"question": text, "choices": ["iron", "쇠", LONG, "salt"][: 2 + number % 3], "answer": "AB"[number % 2]}
        for number, text in enumerate(TEXTS)
    ]
    return choice.Config(), both(folder, ".jsonl", lambda path: lines_of_json(path, *items))


def swag_scenes(folder: Path) -> tuple[TaskConfig, Mapping[str, Path]]:
    head = ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label\n"
    rows = [
        f'{number},v,0,"{text} He","{text}",He,gold,heats iron,"sits, and waits",falls,glows,{number % 4}\n'
        for number, text in enumerate(TEXTS)
    ]
    for name in ("train", "val"):
        written(folder / f"{name}.csv", head + "".join(rows))
    return swag.Config(), {"data": folder}


def codah_fold(folder: Path) -> tuple[TaskConfig, Mapping[str, Path]]:
    for name in ("train", "dev", "test"):
        rows = [("o", text, "heats iron", 'sits "down"', "falls", "glows", 3 - n % 4) for n, text in enumerate(TEXTS)]
        tabbed(folder / "cv_split" / "fold_1" / f"{name}.tsv", *rows)
    return codah.Config(fold=1), {"data": folder}


def commonsense(folder: Path) -> tuple[TaskConfig, Mapping[str, Path]]:
    choices = [{"label": letter, "text": text} for letter, text in zip("ABCDE", TEXTS, strict=False)]
    items = [
        {"id": f"q{n}", "answerKey": "ABCDE"[n % 5], "question": {"stem": text, "choices": choices}}
        for n, text in enumerate(TEXTS)
    ]
    for name in ("train", "valid"):
        lines_of_json(folder / f"{name}.jsonl", *items)
    return commonsenseqa.Config(), {"data": folder}


GLUE: dict[str, tuple[str, list[tuple[Any, ...]]]] = {  # folder, rows of train and dev
    "cola": ("CoLA", [("gj04", n % 2, "" if n % 2 else "*", text) for n, text in enumerate(TEXTS)]),
    "sst-2": ("SST-2", [("sentence", "label"), *((text, n % 2) for n, text in enumerate(TEXTS))]),
    "mrpc": (
        "MRPC",
        [
            ("\ufeffQuality", "#1 ID", "#2 ID", "#1 String", "#2 String"),
            *((n % 2, n, n + 10, f'" {a}', b) for n, (a, b) in enumerate(PAIRS)),
        ],
    ),
    "qqp": (
        "QQP",
        [
            ("id", "qid1", "qid2", "question1", "question2", "is_duplicate"),
            *((n, n, n + 10, a, b, n % 2) for n, (a, b) in enumerate(PAIRS)),
        ],
    ),
    "sts-b": (
        "STS-B",
        [
            (
                "index",
                "genre",
                "filename",
                "year",
                "old_index",
                "source1",
                "source2",
                "sentence1",
                "sentence2",
                "score",
            ),
            *((n, "g", "f", "y", n, "none", "none", a, b, f"{n * 0.9:.3f}") for n, (a, b) in enumerate(PAIRS)),
        ],
    ),
    "mnli": (
        "MNLI",
        [
            ("index", "promptID", "pairID", "genre", *"abcd", "sentence1", "sentence2", "label1", "gold_label"),
            *((n, n, n, "g", *"()()", a, b, w, w) for n, ((a, b), w) in enumerate(zip(PAIRS, WORDS, strict=True))),
        ],
    ),
    "qnli": (
        "QNLI",
        [
            ("index", "question", "sentence", "label"),
            *((n, a, b, ("entailment", "not_entailment")[n % 2]) for n, (a, b) in enumerate(PAIRS)),
        ],
    ),
    "rte": (
        "RTE",
        [
            ("index", "sentence1", "sentence2", "label"),
            *((n, a, b, ("entailment", "not_entailment")[n % 2]) for n, (a, b) in enumerate(PAIRS)),
        ],
    ),
    "wnli": (
        "WNLI",
        [("index", "sentence1", "sentence2", "label"), *((n, a, b, n % 2) for n, (a, b) in enumerate(PAIRS))],
    ),
}


def glue_task(name: str) -> Sample:
    def sample(folder: Path) -> tuple[TaskConfig, Mapping[str, Path]]:
        position, rows = GLUE[name]
        dev = ("dev",) if name != "mnli" else ("dev_matched", "dev_mismatched")
        for split in ("train", *dev):
            tabbed(folder / position / f"{split}.tsv", *rows)
        return glue.Config(name=name), {"data": folder}

    return sample


KOREAN: dict[str, dict[str, Any]] = {  # file -> rows of a tsv, or items of a JSON list
    "nsmc": {
        f"ratings_{split}.txt": [("id", "document", "label"), *((n, t, n % 2) for n, t in enumerate((*TEXTS, "")))]
        for split in ("train", "test")
    },
    "kornli": {
        f"{name}.tsv": [
            ("sentence1", "sentence2", "gold_label"),
            *((f'"{a}', b, word) for (a, b), word in zip(PAIRS, WORDS, strict=True)),
        ]
        for name in ("multinli.train.ko", "snli_1.0_train.ko", "xnli.dev.ko")
    },
    "korsts": {
        f"sts-{split}.tsv": [
            ("genre", "filename", "year", "id", "score", "sentence1", "sentence2"),
            *(("g", "f", "y", "0024", f"{n * 0.9:.3f}", a, b) for n, (a, b) in enumerate(PAIRS)),
        ]
        for split in ("train", "dev")
    },
    "klue-nli": {
        f"klue-nli-v1.1_{split}.json": [
            {"guid": f"g{n}", "premise": a, "hypothesis": b, "gold_label": word}
            for n, ((a, b), word) in enumerate(zip(PAIRS, WORDS, strict=True))
        ]
        for split in ("train", "dev")
    },
    "klue-sts": {
        f"klue-sts-v1.1_{split}.json": [
            {"guid": f"g{n}", "sentence1": a, "sentence2": b, "labels": {"label": n, "real-label": n + 0.1}}
            for n, (a, b) in enumerate(PAIRS)
        ]
        for split in ("train", "dev")
    },
}


def korean_task(name: str) -> Sample:
    def sample(folder: Path) -> tuple[TaskConfig, Mapping[str, Path]]:
        for file, rows in KOREAN[name].items():
            if file.endswith(".json"):
                written(folder / file, json.dumps(rows, indent=4, ensure_ascii=False))
            else:
                tabbed(folder / file, *rows)
        files = {"data": folder} | ({"dev": folder / "ratings_test.txt"} if name == "nsmc" else {})
        return korean.Config(name=name), files

    return sample


PASSAGES = (("who?", f"{LONG}in the old town", "old town"), ("무엇을?", TEXTS[1], "쇠를"), ("which?", TEXTS[2], "가나"))


def own_passages(folder: Path) -> tuple[TaskConfig, Mapping[str, Path]]:
    items = [{"question": question, "context": text, "answer": answer} for question, text, answer in PASSAGES]
    return qa.Config(), both(folder, ".jsonl", lambda path: lines_of_json(path, *items))


def squad_task(name: str) -> Sample:
    def sample(folder: Path) -> tuple[TaskConfig, Mapping[str, Path]]:
        paragraphs = []
        for number, (question, text, answer) in enumerate(PASSAGES):
            known = [{"text": answer, "answer_start": text.index(answer)}]
            labelled: list[dict[str, Any]] = [{"id": f"a{number}", "question": question, "answers": known}]
            if name == "2.0":
                labelled.append({"id": f"b{number}", "question": "why?", "answers": [], "is_impossible": True})
            paragraphs.append({"context": text, "qas": labelled})
        settings = squad.Config(name=name)  # type: ignore[arg-type]
        for split in ("train", "dev"):
            file = folder / squad.MEMBERS[settings.name].format(split)
            written(file, json.dumps({"version": name, "data": [{"title": "iron", "paragraphs": paragraphs}]}))
        return settings, {"data": folder}

    return sample


def tagged(text: str, number: int) -> list[tuple[str, str]]:
    """The words of a text with tags in IOB2: the first one and, in longer texts, the third and fourth are entities."""
    words = text.split()
    tags = [f"B-{('PER', 'LOC')[number % 2]}", "O", "B-ORG", "I-ORG", *["O"] * len(words)]
    return list(zip(words, tags, strict=False))


def column_file(path: Path, *columns: str, kinds: Mapping[str, str]) -> Path:
    lines = []
    for number, text in enumerate(TEXTS):
        for word, tag in tagged(text, number):
            kind = kinds.get(tag[2:], tag[2:])
            lines.append("\t".join((word, *columns, tag[:2] + kind)) + "\n")
        lines.append("\n")
    return written(path, "".join(lines))


def conll2003(folder: Path) -> tuple[TaskConfig, Mapping[str, Path]]:
    lines = ["-DOCSTART- -X- O O\n\n"]
    for number, text in enumerate(TEXTS):
        lines += [f"{word} NN I-NP {tag.replace('B-', 'I-')}\n" for word, tag in tagged(text, number)]
        lines.append("\n")
    for name in ("eng.train", "eng.testa"):
        written(folder / name, "".join(lines))
    return conll.Config(name="conll2003"), {"data": folder}


def conll2003_pos(folder: Path) -> tuple[TaskConfig, Mapping[str, Path]]:
    conll2003(folder)
    for name in ("eng.train", "eng.testa"):  # a part of speech for each word, by its length
        text = (folder / name).read_text(encoding="utf-8")
        lines = [line.replace(" NN ", f" {('NN', 'NNP', 'VB')[len(line) % 3]} ") for line in text.split("\n")]
        written(folder / name, "\n".join(lines))
    return conll.Config(name="conll2003-pos"), {"data": folder}


def wnut17(folder: Path) -> tuple[TaskConfig, Mapping[str, Path]]:
    kinds = {"PER": "person", "LOC": "location", "ORG": "creative-work"}
    for name in ("wnut17train.conll", "emerging.dev.conll"):
        column_file(folder / name, kinds=kinds)
    return conll.Config(name="wnut17"), {"data": folder}


def klue_ner(folder: Path) -> tuple[TaskConfig, Mapping[str, Path]]:
    lines = ["## 주석 : ##\n"]
    for number, text in enumerate(TEXTS):
        lines.append(f"## klue-ner-v1_dev_{number:05}\t<{text}>\n")
        end, kind = len(text.split()[0]), ("PS", "LC")[number % 2]
        tags = [f"B-{kind}", *[f"I-{kind}"] * (end - 1), *["O"] * len(text)]
        lines += [f"{character}\t{tag}\n" for character, tag in zip(text, tags, strict=False)]
        lines.append("\n")
    for split in ("train", "dev"):
        written(folder / f"klue-ner-v1.1_{split}.tsv", "".join(lines))
    return conll.Config(name="klue-ner"), {"data": folder}


def own_entities(folder: Path) -> tuple[TaskConfig, Mapping[str, Path]]:
    items = []
    for number, text in enumerate(TEXTS):
        begin = text.rfind(" ", 0, len(text) - 1) + 1
        end = len(text.rstrip(" .!"))
        items.append({"text": text, "entities": [{"start": begin, "end": end, "label": ("PER", "LOC")[number % 2]}]})
    return tagging.Config(), both(folder, ".jsonl", lambda path: lines_of_json(path, *items))


def several(folder: Path) -> tuple[TaskConfig, Mapping[str, Path]]:
    tasks, files = dict[str, TaskConfig](), dict[str, Path]()
    for name, sample in {"texts": own_texts, "numbers": own_numbers, "choices": own_choices}.items():
        (folder / name).mkdir()
        tasks[name], own = sample(folder / name)
        files |= {f"{name}.{split}": path for split, path in own.items()}
    return multi_task.Config(tasks=tasks, weights={"texts": 0.5}), files


SAMPLES: dict[str, Sample] = {
    "multi_task": several,
    "classification": own_texts,
    "pairs": own_pairs,
    "regression": own_numbers,
    "multi_label": own_label_lists,
    "choice": own_choices,
    "swag": swag_scenes,
    "codah": codah_fold,
    "commonsenseqa": commonsense,
    "qa": own_passages,
    "conll/conll2003": conll2003,
    "conll/conll2003-pos": conll2003_pos,
    "conll/wnut17": wnut17,
    "conll/klue-ner": klue_ner,
    "tagging": own_entities,
    **{f"squad/{name}": squad_task(name) for name in ("1.1", "2.0", "korquad")},
    **{f"glue/{name}": glue_task(name) for name in GLUE},
    **{f"korean/{name}": korean_task(name) for name in KOREAN},
}
