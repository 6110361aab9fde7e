"""Verbs that ask a model about a text: classify, ner, ask, choose, rank, attention."""

from __future__ import annotations

from typing import Annotated

import typer

from bertsmith.cli.models import ModelFolder
from bertsmith.cli.options import Broken, Device, Encoding, Field, Json, Layout, Limit, give, reading_of

app = typer.Typer()
TopK = Annotated[int, typer.Option("--top-k", "-k", min=1, help="How many answers to show, best first.")]


@app.command()
def classify(
    model: ModelFolder,
    texts: Annotated[list[str], typer.Argument(metavar="TEXT...", help="Texts of any length.")],
    second: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Second text of each pair, for models of pairs.", show_default=False),
    ] = None,
    top_k: TopK = 1,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Give each text its label, or its number, by a model that was fine-tuned for it."""
    from bertsmith.inference.predictor import Predictor
    from bertsmith.reports import terminal_predictions

    asked = texts if second is None else [(text, second) for text in texts]
    found = Predictor.open(model, device=device).predict(asked, top_k=top_k)
    lists = [one if isinstance(one, list) else [one] for one in found]
    facts = {"predictions": [{"text": text, "found": some} for text, some in zip(texts, lists, strict=True)]}
    give(facts, as_json, lambda: terminal_predictions.predictions(texts, lists))


@app.command()
def ner(
    model: ModelFolder,
    source: Annotated[str, typer.Argument(metavar="FILE|TEXT", help="A text of any length, or the file it is in.")],
    unit: Annotated[str, typer.Option(help="What the model was taught to tag: word, part or character.")] = "word",
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Find the entities of a text."""
    from bertsmith.inference.predictor import Predictor
    from bertsmith.inference.text_files import read_text
    from bertsmith.reports import terminal_predictions

    found = Predictor.open(model, device=device).ner(read_text(source), unit=unit)  # type: ignore[arg-type] # it checks
    give({"entities": found}, as_json, lambda: terminal_predictions.entities(found))


@app.command()
def ask(
    model: ModelFolder,
    question: Annotated[str, typer.Argument(help="What is asked.")],
    context: Annotated[
        str, typer.Option("--context", "-c", metavar="FILE|TEXT", help="Where the answer stands: any length.")
    ],
    top_k: TopK = 1,
    no_answer: Annotated[
        float | None,
        typer.Option(
            metavar="ODDS",
            help="Answer nothing where that scores more than ODDS above the best answer; else as the model learned.",
            show_default=False,
        ),
    ] = None,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Answer a question with a stretch of a text."""
    from bertsmith.inference.predictor import Predictor
    from bertsmith.inference.text_files import read_text
    from bertsmith.reports import terminal_predictions

    passage = read_text(context)
    found = Predictor.open(model, device=device).answer(question, passage, top_k=top_k, no_answer=no_answer)
    answers = found if isinstance(found, list) else [found]
    give({"question": question, "answers": answers}, as_json, lambda: terminal_predictions.answers(passage, answers))


@app.command()
def choose(
    model: ModelFolder,
    question: Annotated[str, typer.Argument(help="What is asked, or how a text begins.")],
    choices: Annotated[list[str], typer.Argument(metavar="CHOICE...", help="At least two.")],
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Choose the right one of several answers."""
    from bertsmith.inference.predictor import Predictor
    from bertsmith.reports import terminal_predictions

    found = Predictor.open(model, device=device).choose(question, choices)
    give(found, as_json, lambda: terminal_predictions.choices(choices, found))


@app.command()
def rank(
    model: ModelFolder,
    query: Annotated[str, typer.Argument(help="What the texts are held against.")],
    file: Annotated[str, typer.Argument(metavar="FILE", help="A file of texts, one a line in txt.")],
    positive: Annotated[
        str, typer.Option(metavar="LABEL", help="Whose probability is the score; of two labels the second.")
    ] = "",
    top_k: TopK = 10,
    layout: Layout = "auto",
    field: Field = "text",
    encoding: Encoding = "utf-8",
    errors: Broken = "strict",
    limit: Limit = None,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Order texts by how well they match: by a model of pairs, or by the cosine of vectors."""
    from bertsmith.inference.predictor import Predictor
    from bertsmith.inference.text_files import read_texts
    from bertsmith.reports import terminal_predictions

    reading = reading_of("line" if layout == "auto" and file.endswith(".txt") else layout, field, encoding, errors)
    documents = read_texts(file, reading, limit=limit)
    found = Predictor.open(model, device=device).rank(query, documents, positive=positive)[:top_k]
    give({"query": query, "ranked": found}, as_json, lambda: terminal_predictions.ranking(found))


@app.command()
def attention(
    model: ModelFolder,
    text: Annotated[str, typer.Argument(help="A text.")],
    second: Annotated[str | None, typer.Argument(metavar="[SECOND]", help="The second text of a pair.")] = None,
    layer: Annotated[
        int | None, typer.Option(min=1, help="Counted from 1; default: the mean of all.", show_default=False)
    ] = None,
    head: Annotated[
        int | None, typer.Option(min=1, help="Counted from 1; default: the mean of all.", show_default=False)
    ] = None,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Show which token attends to which."""
    from bertsmith.inference.predictor import Predictor
    from bertsmith.reports import terminal_predictions

    facts = Predictor.open(model, device=device).attention(text, second).to_json(layer, head)
    give(facts, as_json, lambda: terminal_predictions.attention_map(facts))
