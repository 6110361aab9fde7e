"""Commands that apply a model to texts: fill-mask, next-sentence, embed, classify, ner, tag-words, ask, rank, ..."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, cast

import typer

import bertsmith.cli.options as opt
from bertsmith import load
from bertsmith.data.text_files import SUFFIXES, check_source, check_text
from bertsmith.errors import BertsmithError

app = typer.Typer()
POOLING_HELP = (
    "mean (over all tokens), first (the [CLS] token), max, mean_sqrt_len or pooled; default: as configured in a "
    "sentence-transformers folder, else mean."
)
RANK_PROMPT_HELP = 'Name of the {0} prompt of an embedding model; "" for none; default: "{0}", if the folder has it.'
PROMPT_HELP = 'Name of a prompt of a sentence-transformers folder; "" for none; default: its default prompt.'
LAYER_HELP = "With sentences: layer to compare; 0: embeddings, -1: last. Or repeat it, one for each model."
WORDS_HELP = "Words, each with its own neighbours; or sentences with one marked word each: 'the *play* began'."
NORMALIZE_HELP = "Scale the vectors to length 1; default: as configured in a sentence-transformers folder, else no."
NO_ANSWER_HELP = "Predict no answer if it outscores the best answer by MARGIN; default: the model's threshold."
FULL_VOCABULARY_HELP = (
    "Probabilities over the full vocabulary, special tokens included, as in transformers; default: special tokens are "
    "left out, and the probabilities of the others sum to 1."
)
TopK = Annotated[int, typer.Option("--top-k", "-k", min=1, help="Number of results, best first.")]
Unit = Annotated[str, typer.Option(help="Unit that is labelled: word, part (split at all punctuation) or character.")]
Source = Annotated[str, typer.Argument(metavar="FILE|TEXT", help="A text of any length, or a file with one.")]
Index = Annotated[int | None, opt.at_least(1, "Counted from 1; default: the mean over all.")]


@app.command("fill-mask")
@opt.opens_model
def fill_mask(
    model: opt.ModelFolder,
    text: Annotated[
        str, typer.Argument(help="Text with one or more [MASK]; adjacent masks are filled together as one phrase.")
    ],
    top_k: TopK = 5,
    target: Annotated[list[str] | None, opt.option("--target", "Score this word; may be repeated.", "WORD")] = None,
    full_vocabulary: Annotated[bool, opt.option("--full-vocabulary", FULL_VOCABULARY_HELP)] = False,
    device: opt.Device = "auto",
    as_json: opt.Json = False,
    *,
    opening: opt.Opening,
) -> None:
    """Predict the masked words of a text."""
    from bertsmith.reports import terminal_predictions

    options: dict[str, Any] = {"targets": target, "full_vocabulary": full_vocabulary}
    result = load(model, device=device, **opening).fill_mask(check_text(text), top_k=top_k, **options)
    masks = result if result and isinstance(result[0], list) else [result]
    opt.print_result({"text": text, "fillings": masks}, as_json, lambda: terminal_predictions.mask_predictions(masks))


@app.command("next-sentence")
@opt.opens_model
def next_sentence(
    model: opt.ModelFolder,
    first: Annotated[str, typer.Argument(metavar="A", help="A text.")],
    second: Annotated[str, typer.Argument(metavar="B", help="A text that may follow it.")],
    device: opt.Device = "auto",
    as_json: opt.Json = False,
    *,
    opening: opt.Opening,
) -> None:
    """Predict whether text B follows text A. ALBERT's sentence-order head predicts whether A and B are in order."""
    from bertsmith.reports import terminal_predictions

    result = load(model, device=device, **opening).next_sentence(check_text(first), check_text(second))
    opt.print_result(result, as_json, lambda: terminal_predictions.next_sentence(result))


@app.command()
@opt.opens_model
def embed(
    model: opt.ModelFolder,
    source: Annotated[str, typer.Argument(metavar="FILE|TEXT", help="A file of texts (txt: one per line), or a text.")],
    output: Annotated[Path | None, opt.output("FILE", "Write the vectors to a .npy, .jsonl or .parquet file.")] = None,
    pooling: Annotated[str | None, typer.Option(help=POOLING_HELP)] = None,
    layers: Annotated[
        str, typer.Option(help="Layer indices, e.g. -1 or -4,-3,-2,-1; 0 is the embedding layer, -1 the last layer.")
    ] = "-1",
    combine: Annotated[str, typer.Option(help="How to combine several layers: mean or concat.")] = "mean",
    normalize: Annotated[bool | None, opt.option("--normalize/--no-normalize", NORMALIZE_HELP)] = None,
    prompt: Annotated[str | None, typer.Option(metavar="NAME", help=PROMPT_HELP)] = None,
    file_format: opt.FileFormat = "auto",
    field: opt.Field = "text",
    encoding: opt.Encoding = "utf-8",
    errors: opt.DecodingErrors = "strict",
    limit: opt.Limit = None,
    device: opt.Device = "auto",
    quiet: opt.Quiet = False,
    as_json: opt.Json = False,
    *,
    opening: opt.Opening,
) -> None:
    """Compute text embeddings."""
    from bertsmith.inference.text_files import embed_source, parse_layers
    from bertsmith.reports import terminal_predictions

    options = {"pooling": pooling, "layers": parse_layers(layers), "combine": combine, "normalize": normalize}
    options["prompt"] = prompt
    reading = opt.read_options(one_text_per_line(file_format, source), field, encoding, errors)
    if not os.path.isfile(source):
        check_source(source, output=output)
        opt.check_text_options(format=file_format, field=field, encoding=encoding, errors=errors, limit=limit)
    facts = embed_source(
        model,
        source,
        output,
        options=options,
        reading=reading,
        limit=limit,
        device=device,
        quiet=quiet or as_json,
        **opening,
    )
    opt.print_result(facts, as_json, lambda: terminal_predictions.embeddings(facts))


@app.command()
@opt.opens_model
def classify(
    model: opt.ModelFolder,
    texts: Annotated[list[str], typer.Argument(metavar="TEXT...", help="Texts of any length.")],
    second: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Second text of each pair, for models of text pairs.")
    ] = None,
    top_k: TopK = 1,
    device: opt.Device = "auto",
    as_json: opt.Json = False,
    *,
    opening: opt.Opening,
) -> None:
    """Predict the labels of texts, or numbers by regression."""
    from bertsmith.reports import terminal_predictions

    for text in texts:
        check_text(text, instead=_advise_predict(model, text) if os.path.isfile(text) else "")
    inputs = texts if second is None else [(text, check_text(second)) for text in texts]
    results = load(model, device=device, **opening).predict(inputs, top_k=top_k)
    lists = [one if isinstance(one, list) else [one] for one in results]
    facts = {"predictions": [{"text": text, "results": some} for text, some in zip(texts, lists, strict=True)]}
    opt.print_result(facts, as_json, lambda: terminal_predictions.predictions(texts, lists))


@app.command()
@opt.opens_model
def ner(
    model: opt.ModelFolder,
    source: Source,
    unit: Unit = "word",
    encoding: opt.Encoding = "utf-8",
    errors: opt.DecodingErrors = "strict",
    device: opt.Device = "auto",
    as_json: opt.Json = False,
    *,
    opening: opt.Opening,
) -> None:
    """Find the named entities of a text."""
    from bertsmith.reports import terminal_predictions

    text = _read_text(source, encoding, errors)
    entities = load(model, device=device, **opening).ner(text, unit=cast(Any, unit))
    opt.print_result({"entities": entities}, as_json, lambda: terminal_predictions.entities(entities))


@app.command("tag-words")
@opt.opens_model
def tag_words(
    model: opt.ModelFolder,
    source: Source,
    unit: Unit = "word",
    encoding: opt.Encoding = "utf-8",
    errors: opt.DecodingErrors = "strict",
    device: opt.Device = "auto",
    as_json: opt.Json = False,
    *,
    opening: opt.Opening,
) -> None:
    """Predict the label of each word, such as part of speech."""
    from bertsmith.reports import terminal_predictions

    text = _read_text(source, encoding, errors)
    words = load(model, device=device, **opening).tag_words(text, unit=cast(Any, unit))
    opt.print_result({"words": words}, as_json, lambda: terminal_predictions.word_labels(words))


@app.command()
@opt.opens_model
def ask(
    model: opt.ModelFolder,
    question: Annotated[str, typer.Argument(help="The question.")],
    context: Annotated[
        str, typer.Option("--context", "-c", metavar="FILE|TEXT", help="Text of any length that contains the answer.")
    ],
    top_k: TopK = 1,
    no_answer: Annotated[float | None, typer.Option(metavar="MARGIN", help=NO_ANSWER_HELP)] = None,
    encoding: opt.Encoding = "utf-8",
    errors: opt.DecodingErrors = "strict",
    device: opt.Device = "auto",
    as_json: opt.Json = False,
    *,
    opening: opt.Opening,
) -> None:
    """Answer a question with a span of a text."""
    from bertsmith.reports import terminal_predictions

    passage = _read_text(context, encoding, errors)
    result = load(model, device=device, **opening).answer(
        check_text(question), passage, top_k=top_k, no_answer=no_answer
    )
    answers = result if isinstance(result, list) else [result]
    facts = {"question": question, "answers": answers}
    opt.print_result(facts, as_json, lambda: terminal_predictions.answers(passage, answers))


@app.command()
@opt.opens_model
def choose(
    model: opt.ModelFolder,
    question: Annotated[str, typer.Argument(help="A question, or the beginning of a text.")],
    choices: Annotated[list[str], typer.Argument(metavar="CHOICE...", help="The choices, at least two.")],
    device: opt.Device = "auto",
    as_json: opt.Json = False,
    *,
    opening: opt.Opening,
) -> None:
    """Choose one of several answers or endings."""
    from bertsmith.reports import terminal_predictions

    result = load(model, device=device, **opening).choose(check_text(question), choices)
    opt.print_result(dict(result), as_json, lambda: terminal_predictions.choices(choices, result))


@app.command()
@opt.opens_model
def rank(
    model: opt.ModelFolder,
    query: Annotated[str, typer.Argument(help="The query.")],
    file: Annotated[str, typer.Argument(metavar="FILE", help="A file of texts (txt: one per line).")],
    positive: Annotated[
        str, typer.Option(metavar="LABEL", help="Label whose probability is the score; default: the second of two.")
    ] = "",
    prompt: Annotated[str | None, typer.Option(metavar="NAME", help=RANK_PROMPT_HELP.format("query"))] = None,
    document_prompt: Annotated[
        str | None, typer.Option(metavar="NAME", help=RANK_PROMPT_HELP.format("document"))
    ] = None,
    top_k: TopK = 10,
    file_format: opt.FileFormat = "auto",
    field: opt.Field = "text",
    encoding: opt.Encoding = "utf-8",
    errors: opt.DecodingErrors = "strict",
    limit: opt.Limit = None,
    device: opt.Device = "auto",
    as_json: opt.Json = False,
    *,
    opening: opt.Opening,
) -> None:
    """Rank texts by relevance to a query. Uses a model of text pairs, or the cosine similarity of embeddings."""
    from bertsmith.inference.text_files import read_texts
    from bertsmith.reports import terminal_predictions

    reading = opt.read_options(one_text_per_line(file_format, file), field, encoding, errors)
    check_text(query)
    documents = read_texts(file, reading, limit=limit)
    prompts = {"prompt": prompt, "document_prompt": document_prompt}
    ranked = load(model, device=device, **opening).rank(query, documents, positive=positive, **prompts)[:top_k]
    opt.print_result({"query": query, "ranked": ranked}, as_json, lambda: terminal_predictions.ranking(ranked))


@app.command()
@opt.opens_model
def attention(
    model: opt.ModelFolder,
    text: Annotated[str, typer.Argument(help="A text.")],
    second: Annotated[str | None, typer.Argument(metavar="[SECOND]", help="Second text of a pair.")] = None,
    layer: Index = None,
    head: Index = None,
    device: opt.Device = "auto",
    as_json: opt.Json = False,
    *,
    opening: opt.Opening,
) -> None:
    """Show the attention weights between tokens of a text."""
    from bertsmith.reports import terminal_predictions

    for one in (text, second or ""):
        check_text(one)
    facts = load(model, device=device, **opening).attention(text, second).to_json(layer, head)
    opt.print_result(facts, as_json, lambda: terminal_predictions.attention_map(facts))


@app.command()
@opt.opens_model
def neighbours(
    model: opt.ModelFolder,
    words: Annotated[list[str], typer.Argument(metavar="WORD...", help=WORDS_HELP)],
    plus: Annotated[
        list[str] | None, opt.option("--plus", "Add the vector of this word; may be repeated.", "W")
    ] = None,
    minus: Annotated[
        list[str] | None, opt.option("--minus", "Subtract the vector of this word; may be repeated.", "W")
    ] = None,
    layer: Annotated[list[int] | None, opt.option("--layer", LAYER_HELP, "N")] = None,
    other: Annotated[
        list[Path] | None, opt.option("--with", "With sentences: show this model too; may be repeated.", "FOLDER")
    ] = None,
    top_k: TopK = 10,
    device: opt.Device = "auto",
    as_json: opt.Json = False,
    *,
    opening: opt.Opening,
) -> None:
    """Show the nearest neighbours of words. Marked words are compared within their sentences: "the *play* began"."""
    from bertsmith.inference.neighbours import WordIndex
    from bertsmith.inference.word_contexts import is_marked
    from bertsmith.reports import terminal_predictions

    if any(map(is_marked, words)):
        if plus or minus:
            raise BertsmithError("--plus and --minus are for words without a sentence")
        folders = [model, *(other or ())]
        loaded = [load(one, device=device, **(opening if one == model else {})) for one in folders]
        layers = _layer_of_each(folders, [one.model.encoder.layers for one in loaded], layer or [-1])
        compared = [
            {"model": str(folder), **one.word_contexts(words, layer=number).to_json()}
            for folder, one, number in zip(folders, loaded, layers, strict=True)
        ]
        opt.print_result({"models": compared}, as_json, lambda: terminal_predictions.word_contexts(compared))
        return
    if other or layer:
        raise BertsmithError("--with and --layer are for words in sentences, each marked as in: the *play* began")
    for word in (*words, *(plus or ()), *(minus or ())):
        check_text(word)
    predictor = load(model, device=device, **opening)
    index = WordIndex(predictor.model, predictor.tokenizer)
    found = []
    for word in words:
        nearest = index.neighbours([word, *(plus or ())], minus=minus or (), top_k=top_k)
        found.append({"word": word, "neighbours": [asdict(one) for one in nearest]})
    opt.print_result({"words": found}, as_json, lambda: terminal_predictions.neighbours(found))


def _layer_of_each(folders: Sequence[Path], counts: Sequence[int], layers: Sequence[int]) -> list[int]:
    """One layer for all models, or one for each; `counts`: how many layers each has."""
    if len(layers) not in (1, len(folders)):
        raise BertsmithError(
            f"--layer is given {len(layers)} times for {len(folders)} models: give it once, or once for each in order"
        )
    chosen = [*layers] * (len(folders) // len(layers))
    for folder, count, layer in zip(folders, counts, chosen, strict=True):
        if not -count - 1 <= layer <= count:
            has = f"layers 0 (the embeddings) to {count}" if count else "only layer 0, the embeddings"
            each = ", or give --layer once for each model in order" if len(folders) > 1 else ""
            raise BertsmithError(f"--layer {layer}: {folder} has {has}; choose another, such as -1 (the last){each}")
    return chosen


def _read_text(source: str, encoding: str, errors: str) -> str:
    """The contents of a file, or the source itself if it is a text."""
    from bertsmith.inference.text_files import read_text

    text = read_text(source, opt.read_options("file", "text", encoding, errors))
    if not os.path.isfile(source):
        opt.check_text_options(encoding=encoding, errors=errors)
    return text


def _advise_predict(model: Path, file: str) -> str:
    from bertsmith.evaluation.evaluator import finetune_config_of

    task = "" if finetune_config_of(model) else "--task classification "
    return f"use bertsmith predict {model} {task}--file {file}"


def one_text_per_line(file_format: str, path: str) -> str:
    """The format of a file: by default, a txt file has one text per line."""
    plain, ending = os.path.splitext(path.lower())
    is_txt = ending == ".txt" or (ending in SUFFIXES and plain.endswith(".txt"))
    return "line" if file_format == "auto" and is_txt else file_format
