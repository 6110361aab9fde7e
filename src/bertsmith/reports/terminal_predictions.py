"""Terminal output of predictions, embeddings and exports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.text import Text

from bertsmith.reports.terminal import console, facts_table, plain_table

CONTEXT = 40  # characters of the passage shown on each side of an answer
SHADES = " ░▒▓█"  # from no attention to the maximum
TOKEN_WIDTH = 16


def mask_predictions(masks: Sequence[Sequence[Mapping[str, Any]]]) -> None:
    """Candidates for each mask."""
    for candidates in masks:
        rows = plain_table(show_header=False)
        for one in candidates:
            bar = "▇" * max(round(20 * one["score"]), 1)
            word, sequence = Text(one["token_str"], "bold"), Text(one["sequence"], "dim")
            rows.add_row(f"{one['score']:7.2%}", word, Text(bar, "cyan"), sequence)
        console.print(rows)


def neighbours(words: Sequence[Mapping[str, Any]]) -> None:
    """The neighbours of each word, most similar first."""
    for one in words:
        rows = plain_table(show_header=False)
        for other in one["neighbours"]:
            rows.add_row(f"{other['similarity']:6.3f}", Text(other["word"]))
        console.print(Text(one["word"], "bold"), rows)


def word_contexts(models: Sequence[Mapping[str, Any]]) -> None:
    """The similarities of each sentence to the others, by model; the nearest is bold unless all are equally near."""
    for one in models:
        sentences, similarity = one["sentences"], one["similarity"]
        grid = plain_table("", "", right=tuple(str(number + 1) for number in range(len(sentences))))
        for number, (sentence, row) in enumerate(zip(sentences, similarity, strict=True)):
            others = [value for column, value in enumerate(row) if column != number]
            nearest = max(others) if max(others) - min(others) >= 0.005 else None
            cells = [
                Text(f"{value:.2f}", "dim" if column == number else "bold" if value == nearest else "")
                for column, value in enumerate(row)
            ]
            text, start, end = sentence["text"], sentence["start"], sentence["end"]
            grid.add_row(str(number + 1), Text.assemble(text[:start], (text[start:end], "bold"), text[end:]), *cells)
        console.print(Text(f"{one['model']}, layer {one['layer']}", "bold"), grid)


def next_sentence(result: Mapping[str, Any]) -> None:
    """The probabilities of the two classes, and the head that answers."""
    classes = [(name, value) for name, value in result.items() if name not in ("objective", "truncated")]
    shown = "   ".join(f"{name.replace('_', ' ')} {value:.2%}" for name, value in classes)
    console.print(f"{shown}   ({result['objective']}{', truncated' if result['truncated'] else ''})")


def stream(prompt: str, parts: Iterable[str]) -> None:
    """A prompt and the parts of the text after it as they arrive."""
    print(prompt, end="", flush=True)
    for part in parts:
        print(part, end="", flush=True)
    print()


def generated(facts: Sequence[Mapping[str, Any]]) -> None:
    """Each prompt with its texts."""
    for one in facts:
        for result in one["results"]:
            console.print(Text.assemble((one["prompt"], "dim"), result["text"]), soft_wrap=True)


def translations(facts: Mapping[str, Any]) -> None:
    """One line for each translation, where they are not in a file; BLEU and chrF where they are known."""
    for one in facts.get("translations", ()) if "bleu" not in facts else ():
        for result in one if isinstance(one, list) else [one]:
            console.print(Text(result["text"]), soft_wrap=True)
    if "bleu" in facts or "output" in facts:
        facts_table({name: value for name, value in facts.items() if name != "translations"})


def scores(texts: Sequence[Mapping[str, Any]], total: Mapping[str, Any]) -> None:
    """The tokens of a single text, or one line for each of several; then the totals."""
    rows = plain_table(show_header=True)
    if len(texts) == 1:
        rows.add_column("nats", justify="right")
        rows.add_column("token")
        rows.add_column("")
        for token in texts[0]["tokens"]:
            value = token["surprisal"]
            shown = "-" if value is None else f"{value:.3f}"
            word = texts[0]["text"][token["start"] : token["end"]] or token["token_str"]
            rows.add_row(shown, Text(_one_line(word), "bold"), Text("▇" * round(min(value or 0, 20) * 2), "cyan"))
    else:
        for name in ("perplexity", "nats/byte", "tokens"):
            rows.add_column(name, justify="right")
        rows.add_column("text")
        for one in texts:
            rows.add_row(*_score(one), str(len(one["tokens"])), Text(_shortened(one["text"]), "dim"))
    console.print(rows)
    perplexity, nats_per_byte = _score(total)
    tokens = f"{total['scored_tokens']:,} scored tokens"
    console.print(f"perplexity {perplexity}   {nats_per_byte} nats per byte   {total['surprisal']:.2f} nats   {tokens}")


def _score(one: Mapping[str, Any]) -> list[str]:
    return ["-" if one[name] is None else f"{one[name]:.5g}" for name in ("perplexity", "nats_per_byte")]


def embeddings(facts: Mapping[str, Any]) -> None:
    facts_table({name: value for name, value in facts.items() if name != "vectors"})
    for vector in facts.get("vectors", []):
        numbers = ", ".join(f"{value:.4f}" for value in vector[:8])
        console.print(f"[{numbers}, …]  (--json prints all numbers, -o writes a file)")


def predictions(texts: Sequence[str], results: Sequence[Sequence[Mapping[str, Any]]]) -> None:
    rows = plain_table(show_header=False)
    for text, result in zip(texts, results, strict=True):
        for one in result:
            score = f"{one['score']:7.2%}" if "label" in one else f"{one['score']:.4g}"
            style, mark = ("bold", "✓") if one.get("predicted", True) else ("dim", "")  # of multi-label models
            marks = [mark] if "predicted" in one else []
            rows.add_row(score, *marks, Text(one.get("label", ""), style), Text(_shortened(text), "dim"), _windows(one))
    console.print(rows)


def entities(results: Sequence[Mapping[str, Any]]) -> None:
    rows = plain_table(show_header=False)
    for one in results:
        group, offsets = Text(one["entity_group"], "cyan"), Text(f"{one['start']}-{one['end']}", "dim")
        rows.add_row(f"{one['score']:7.2%}", group, Text(_shortened(one["word"]), "bold"), offsets)
    console.print(rows if results else "no entities")


def word_labels(results: Sequence[Mapping[str, Any]]) -> None:
    rows = plain_table(show_header=False)
    for one in results:
        label, offsets = Text(one["label"], "cyan"), Text(f"{one['start']}-{one['end']}", "dim")
        rows.add_row(f"{one['score']:7.2%}", label, Text(_shortened(one["word"]), "bold"), offsets)
    console.print(rows if results else "no words")


def answers(passage: str, results: Sequence[Mapping[str, Any]]) -> None:
    """Each answer with the text around it."""
    rows = plain_table(show_header=False)
    for one in results:
        start, end = one["start"], one["end"]
        shown = Text("no answer", "italic")
        if one["answer"]:
            before, after = passage[max(start - CONTEXT, 0) : start], passage[end : end + CONTEXT]
            answer = f"«{_one_line(passage[start:end])}»"
            shown = Text.assemble((_one_line(before), "dim"), (answer, "bold cyan"), (_one_line(after), "dim"))
        rows.add_row(f"{one['score']:7.2%}", shown, "(question truncated)" if one.get("truncated") else "")
    console.print(rows)


def choices(given: Sequence[str], result: Mapping[str, Any]) -> None:
    rows = plain_table(show_header=False)
    for index, (choice, probability) in enumerate(zip(given, result["probabilities"], strict=True)):
        rows.add_row(f"{probability:7.2%}", Text(_shortened(choice), "bold" if index == result["index"] else "dim"))
    console.print(rows)
    if result.get("truncated"):
        console.print("(truncated)")


def ranking(results: Sequence[Mapping[str, Any]]) -> None:
    rows = plain_table(show_header=False)
    for one in results:
        remark = "(truncated)" if one.get("truncated") else _windows(one)
        rows.add_row(f"{one['score']:8.4f}", Text(str(one["index"] + 1), "dim"), Text(_shortened(one["text"])), remark)
    console.print(rows)


def attention_map(facts: Mapping[str, Any]) -> None:
    """One row per query token, darker where its attention is higher; as many tokens as the terminal is wide."""
    tokens = facts["tokens"]
    count = min(len(tokens), max((console.width - TOKEN_WIDTH - 4) // 2, 1))
    weights = [row[:count] for row in facts["weights"][:count]]
    highest = max(max(row) for row in weights) or 1.0
    layer, head = (facts[name] or "mean" for name in ("layer", "head"))
    console.print(f"layer {layer}, head {head}: one row per query token, darkest = {highest:.2f}", style="dim")
    console.print(Text(" " * (TOKEN_WIDTH + 4) + "".join(f"{index % 100:2d}" for index in range(count)), "dim"))
    for index, row in enumerate(weights):
        cells = "".join(SHADES[round(weight / highest * (len(SHADES) - 1))] * 2 for weight in row)
        name = Text(tokens[index])
        name.truncate(TOKEN_WIDTH, overflow="ellipsis", pad=True)  # by columns: Hangul takes two per character
        console.print(Text.assemble(f"{index:3d} ", name, cells), no_wrap=True, crop=True)
    if count < len(tokens):
        console.print(f"({len(tokens) - count} more tokens: --json prints all)", style="dim")
    if facts["truncated"]:
        console.print("(the text was truncated)", style="dim")


def export(facts: Mapping[str, Any]) -> None:
    """The written files, and their maximum absolute difference from the model on each compared batch."""
    small = ("max_abs_diff", "max_abs_output", "tolerance")
    if "parity" in facts:
        rows = plain_table(right=("texts", "max length", "padded", "max abs diff"))
        for one in facts["parity"]:
            padded = "yes" if one["padded"] else "no"
            rows.add_row(str(one["texts"]), f"{one['max_length']} tokens", padded, f"{one['max_abs_diff']:.2g}")
        console.print(rows)
        console.print()
    facts_table({name: f"{value:.2g}" if name in small else value for name, value in facts.items() if name != "parity"})


def _windows(one: Mapping[str, Any]) -> str:
    return f"({one['windows']} windows)" if "windows" in one else ""


def _one_line(text: str) -> str:
    return "".join(" " if character.isspace() else character for character in text)


def _shortened(text: str, length: int = 70) -> str:
    """One line of at most `length` characters."""
    line = _one_line(text).strip()
    return line if len(line) <= length else f"{line[: length - 1]}…"
