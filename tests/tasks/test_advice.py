"""The advice in errors of tasks works when it is followed as it stands, as settings on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bertsmith.errors import BertsmithError
from bertsmith.tasks.task import Example
from bertsmith.training.finetune_data import build_task
from bertsmith.training.recipe import make_finetune_config

MANY = "text,label,class\n" + "".join(f"text {n},{n},{'ab'[n % 2]}\n" for n in range(30))
ADA = {"text": "Ada-based 대장장이는", "entities": [{"start": 0, "end": 3, "label": "PER"}]}
SMITH = {"text": "Ada 대장장이는", "entities": [{"start": 4, "end": 8, "label": "PER"}]}
ANSWER = {"question": "who", "context": "the smith", "answer": "gold"}
# task, name and contents of its train file, settings, the advice, settings that it leaves to the user
CASES: list[tuple[str, str, str, list[str], str, list[str]]] = [
    ("classification", "a.csv", "a,b,c\nfine,x,1\nbad,y,0\n", [], "task.text=COLUMN", ["task.text=a", "task.label=c"]),
    ("classification", "a.csv", "alpha,c\nfine,1\nbad,0\n", ["task.text=alpa"], "task.text=alpha", []),
    ("classification", "a.csv", "text,label,label,c\nx,1,0,a\ny,0,1,b\n", [], "task.label=COLUMN", ["task.label=c"]),
    ("classification", "a.tsv", "pos\tfine\nneg\tbad\npos\tgood\n", [], "task.header=false", []),
    ("classification", "a.csv", "x,fine\ny,bad\n", ["task.text=column2"], "task.header=false", []),
    ("classification", "a.csv", 'text,label\nfine "film,a\n"bad" film,b\n', [], "task.quoted=false", []),
    ("classification", "a.tsv", 'text\tlabel\n"fine\tfilm"\ta\nbad\tb\n', [], "task.quoted=true", []),
    ("classification", "a.csv", "text,label\n훌륭해요,긍정\n별로예요,부정\n", [], "task.encoding=cp949", []),
    ("classification", "a.csv", "text,label\nx,a\ny,b\nz,c\n", ["main_metric=f1"], "task.positive=LABEL", []),
    ("classification", "a.csv", "text,label\nx,pos\ny,neg\n", ["task.positive=poss"], "task.positive=pos", []),
    ("classification", "a.csv", MANY, [], "task.label=COLUMN", ["task.label=class"]),
    ("pairs", "a.csv", "first,other,label,more\nx,y,a,1\ny,x,b,2\n", ["task.first=first"], "task.second=COLUMN", []),
    ("tagging", "a.conll", "Ada NN B-PER x\nis V O x\n", ["task.tags=9"], "task.tags=NUMBER", ["task.tags=3"]),
    ("tagging", "a.conll", "Ada I-PER\nis O\nGrace B-LOC\nHopper I-PER\n", [], "task.scheme=lenient", []),
    ("tagging", "a.conll", "Ada B-PER\nis O\n", ["task.context=document"], "task.context=sentence", []),
    ("tagging", "a.jsonl", json.dumps(ADA), [], "task.unit=part", []),
    ("tagging", "a.jsonl", json.dumps(SMITH), [], "task.unit=character", []),
    ("qa", "a.jsonl", json.dumps(ANSWER), [], "task.misplaced=skip", []),
    ("qa", "a.jsonl", json.dumps(ANSWER | {"answer": ""}), [], "task.rules=2.0", []),
    ("choice", "a.csv", "question,this,that,label\nq,x,y,x\nr,x,y,y\n", [], 'task.choices=["COLUMN", …]', []),
]
FOLLOWED = {  # advice that leaves a name to the user
    "task.header=false": ["task.header=false", "task.text=column2", "task.label=column1"],
    "task.positive=LABEL": ["task.positive=a"],
    "task.second=COLUMN": ["task.second=other"],
    'task.choices=["COLUMN", …]': ['task.choices=["this", "that"]'],
}


def read_train(task: str, path: Path, settings: list[str]) -> list[Example]:
    return build_task(make_finetune_config(task, "m", {"train": path}, settings)).examples("train")


@pytest.mark.parametrize(("task", "name", "contents", "settings", "advice", "more"), CASES)
def test_advice_works_as_it_is_written(
    task: str, name: str, contents: str, settings: list[str], advice: str, more: list[str], tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(contents.encode("cp949" if "encoding" in advice else "utf-8"))
    with pytest.raises(BertsmithError) as caught:
        read_train(task, path, settings)
    assert advice in str(caught.value)
    try:
        assert read_train(task, path, [*settings, *(more or FOLLOWED.get(advice, [advice]))])
    except BertsmithError as error:
        raise AssertionError(str(error)) from error
