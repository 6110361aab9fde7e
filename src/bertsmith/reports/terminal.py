"""How results look in a terminal. Takes finished facts and prints them; decides nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bertsmith.data.shards import FileReport, Shards
from bertsmith.tokenizers.tokenizer import Tokenizer
from bertsmith.types import Encoded

console = Console(highlight=False)
SHADES = ("black on bright_cyan", "black on bright_yellow")  # neighbouring tokens, so that their borders show
UNKNOWN = "white on red"
MOST_ROWS = 40
WIDE = 110  # columns of a terminal that has room for all numbers of a recipe


def table(facts: Mapping[str, Any], *, title: str = "") -> None:
    """Names and values in two columns."""
    grid = Table(
        title=title or None, title_justify="left", title_style="bold", show_header=False, box=None, pad_edge=False
    )
    grid.add_column(style="dim")
    grid.add_column(overflow="fold")
    for name, value in facts.items():
        grid.add_row(name.replace("_", " "), shown(name, value))
    console.print(grid)


def shown(name: str, value: Any) -> str:
    """A value as a person reads it: thousands apart, shares in percent, bytes in MB."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "-"}[value]
    if isinstance(value, int):
        return f"{value / 1e6:,.1f} MB" if name.endswith("bytes") or name == "bytes" else f"{value:,}"
    if isinstance(value, float):
        rate = name.endswith(("_rate", "_used")) or name == "held_out"
        return f"{value:.2%}" if rate else f"{value:.3f}" if abs(value) >= 0.001 or value == 0 else f"{value:.3g}"
    if isinstance(value, Mapping):
        return "  ".join(f"{key} {item}" for key, item in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


# --- tokenizers ----------------------------------------------------------------------------------------------------


def tokenizer_facts(tokenizer: Tokenizer) -> dict[str, Any]:
    roles = {role: token for role, token in vars(tokenizer.special_tokens).items() if token}
    return {
        "kind": tokenizer.kind,
        "vocab_size": tokenizer.vocab_size,
        "fingerprint": tokenizer.fingerprint,
        "specials": {token: tokenizer.token_to_id(token) for token in dict.fromkeys(roles.values())},
    }


def tokenizer_card(facts: Mapping[str, Any], tokenizer: Tokenizer) -> None:
    table(facts)
    words = tokenizer.tokens()
    places = np.linspace(0, len(words) - 1, num=min(len(words), 24)).astype(int)
    console.print(
        "[dim]from the first to the last entry:[/dim]", "  ".join(words[place] for place in places), markup=True
    )


def tokenizer_learned(tokenizer: Tokenizer, folder: Path) -> None:
    tokenizer_card({"folder": folder, **tokenizer_facts(tokenizer)}, tokenizer)


def encoding_facts(tokenizer: Tokenizer, texts: Sequence[str], encoded: Sequence[Encoded]) -> dict[str, Any]:
    """What a tokenizer made of one text, or of a pair."""
    unknown = sum(int(np.count_nonzero(one.ids == tokenizer.unknown_id)) for one in encoded)
    tokens = sum(map(len, encoded))
    row = tokenizer.frame(*encoded, max_length=tokens + len(tokenizer.frame_ids.pair))
    return {
        "tokens": [tokenizer.id_to_token(int(number)) for number in row.ids],
        "ids": row.ids.tolist(),
        "segments": row.segment_ids.tolist(),
        "offsets": row.offsets.tolist(),
        "texts": row.sequence_ids.tolist(),
        "unknown": unknown,
        "unknown_rate": unknown / max(tokens, 1),
        "tokens_per_word": tokens / max(sum(len(text.split()) for text in texts), 1),
    }


def encoding_picture(
    tokenizer: Tokenizer, texts: Sequence[str], encoded: Sequence[Encoded], facts: Mapping[str, Any]
) -> None:
    """The text with its tokens shaded, then a row for each token of the framed input."""
    for text, one in zip(texts, encoded, strict=True):
        console.print(_shaded(text, one, tokenizer.unknown_id))
    rows = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("", "token", "id", "segment", "begin", "end"):
        rows.add_column(heading, justify="left" if heading == "token" else "right")
    columns = zip(facts["tokens"], facts["ids"], facts["segments"], facts["offsets"], facts["texts"], strict=True)
    for place, (token, number, segment, (begin, end), source) in enumerate(columns):
        if place == MOST_ROWS:
            rows.add_row("…", f"{len(facts['ids']) - MOST_ROWS} more (--json shows all)", "", "", "", "")
            break
        style = "red" if number == tokenizer.unknown_id else "dim" if source < 0 else ""
        where = ("", "") if source < 0 else (str(begin), str(end))
        rows.add_row(str(place), Text(token), str(number), str(segment), *where, style=style)
    console.print(rows)
    console.print(
        f"{len(facts['ids'])} tokens with the frame, {facts['tokens_per_word']:.2f} a word, "
        f"unknown {facts['unknown_rate']:.1%}"
    )


def encoding_line(tokenizer: Tokenizer, text: str, encoded: Encoded) -> None:
    """The shaded text and its pieces on two lines."""
    console.print(_shaded(text, encoded, tokenizer.unknown_id))
    console.print(Text("  " + " ".join(tokenizer.id_to_token(int(number)) for number in encoded.ids), style="dim"))


def _shaded(text: str, encoded: Encoded, unknown: int) -> Text:
    picture = Text(text)
    for place, (number, (begin, end)) in enumerate(zip(encoded.ids.tolist(), encoded.offsets.tolist(), strict=True)):
        picture.stylize(UNKNOWN if number == unknown else SHADES[place % len(SHADES)], begin, end)
    return picture


# --- shards --------------------------------------------------------------------------------------------------------


def shard_facts(index: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The figures of a shard set that its maker wants to see."""
    splits = {name: Shards.open(folder, name) for name in ("train", "held-out")}
    tokens = sum(split.tokens for split in splits.values())
    size = sum(path.stat().st_size for path in folder.glob("*.shard"))
    return {
        "folder": str(folder),
        "tokenizer": splits["train"].fingerprint,
        "documents": splits["train"].documents,
        "sentences": splits["train"].sentences,
        "tokens": splits["train"].tokens,
        "held_out_documents": splits["held-out"].documents,
        "held_out_tokens": splits["held-out"].tokens,
        **index.get("counts", {}),
        "tokens_per_sentence": splits["train"].tokens / max(splits["train"].sentences, 1),
        "bytes_per_token": size / max(tokens, 1),
        "bytes": size,
    }


def report_facts(report: FileReport) -> dict[str, Any]:
    return {
        "name": report.name,
        "ok": report.ok,
        "bytes": report.bytes,
        "tokens": report.tokens,
        "message": report.message,
    }


def verified(report: FileReport) -> None:
    mark = Text("ok     ", "green") if report.ok else Text("DAMAGED", "red")
    size = f"{report.tokens:,} tokens" if report.tokens else f"{report.bytes:,} bytes"
    console.print(mark, f"{report.name:<36}", f"{size:>22}", "" if report.ok else report.message, soft_wrap=True)


# --- models --------------------------------------------------------------------------------------------------------


def model_card(facts: Mapping[str, Any]) -> None:
    plain = {name: facts[name] for name in ("folder", "architectures", "objectives", "tokenizer", "checksums", "notes")}
    table({name: value for name, value in plain.items() if value != []})
    table(facts["encoder"], title="encoder")
    rooms = Table(
        title="parameters", title_justify="left", title_style="bold", show_header=False, box=None, pad_edge=False
    )
    total = facts["parameters"]
    for name, count in facts["parameters_by_room"].items():
        rooms.add_row(Text(name, "dim"), f"{count:>13,}", "▇" * max(round(40 * count / total), 1))
    rooms.add_row(Text("all", "dim"), f"{total:>13,}", "")
    console.print(rooms)
    memory = facts["memory"]
    title = f"memory, estimated for {memory['batch']} × {memory['length']} tokens"
    table(
        {"disk_bytes": facts["disk_bytes"]} | {name: memory[name] for name in memory if name.endswith("bytes")},
        title=title,
    )


def fillings(runs: Sequence[Sequence[Mapping[str, Any]]]) -> None:
    for run in runs:
        rows = Table(box=None, pad_edge=False, show_header=False)
        for found in run:
            bar = "▇" * max(round(20 * found["score"]), 1)
            rows.add_row(
                f"{found['score']:7.2%}",
                Text(found["token_str"], "bold"),
                Text(bar, "cyan"),
                Text(found["sequence"], "dim"),
            )
        console.print(rows)


def follows(found: Mapping[str, Any]) -> None:
    console.print(
        f"follows {found['is_next']:.2%}   random {found['random']:.2%}" + ("   (cut to fit)" if found["cut"] else "")
    )


def embedded(facts: Mapping[str, Any]) -> None:
    shown_facts = {name: value for name, value in facts.items() if name != "vectors"}
    table(shown_facts)
    for vector in facts.get("vectors", []):
        console.print(f"[{', '.join(f'{value:.4f}' for value in vector[:8])}, …]  (--json shows all, -o writes a file)")


# --- recipes -------------------------------------------------------------------------------------------------------


def recipe_list(recipes: Sequence[Mapping[str, Any]]) -> None:
    """A line for each; what a narrow terminal has no room for is in the recipe itself."""
    grid = Table(box=None, pad_edge=False, header_style="dim")
    counts = ("parameters", "length", "rows", "steps") if console.width >= WIDE else ("parameters",)
    for heading in ("recipe", *counts, "about"):
        words = heading in ("recipe", "about")
        grid.add_column(heading, justify="left" if words else "right", no_wrap=heading != "about")
    for one in recipes:
        numbers = (f"{one[name]:,}" for name in counts)
        grid.add_row(Text(one["recipe"], "bold"), *numbers, Text(one["about"], "dim"))
    console.print(grid)


def checked(finding: Mapping[str, Any]) -> None:
    """One line of a checklist."""
    style = {"ok": "green", "note": "yellow", "problem": "red"}[finding["state"]]
    console.print(Text(f"{finding['state']:<8}", style), f"{finding['check']:<14}", finding["text"], soft_wrap=True)


# --- the machine ---------------------------------------------------------------------------------------------------


def doctor_card(facts: Mapping[str, Any]) -> None:
    plain = {name: value for name, value in facts.items() if name not in ("ok", "problems", "numeric", "ceilings")}
    table(plain)
    if "ceilings" in facts:
        ceilings(facts["ceilings"])
    for check in facts["numeric"]:
        mark = "[green]ok[/green]" if check["ok"] else "[red]WRONG[/red]"
        console.print(
            f"{mark} {check['precision']} on {facts['device']} against float64 on the CPU: {check['error']:.1e}",
            markup=True,
        )
    console.print("[green]fit[/green]" if facts["ok"] else f"[red]{'; '.join(facts['problems'])}[/red]", markup=True)


def ceilings(found: Sequence[Mapping[str, Any]]) -> None:
    """What the device can do at most."""
    grid = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("at most", "precision", "measured"):
        grid.add_column(heading, justify="right" if heading == "measured" else "left")
    for one in found:
        grid.add_row(
            one["what"], one["precision"], f"{one['value']:,.{2 if one['unit'] == 'ms' else 0}f} {one['unit']}"
        )
    console.print(grid)


# --- fine-tuning ---------------------------------------------------------------------------------------------------


def sweep(found: Mapping[str, Any]) -> None:
    """Scores by rate over the seeds, and the run that was kept."""
    rows = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("learning rate", "runs", f"mean {found['main']}", "± sd", "median", "best"):
        rows.add_column(heading, justify="right")
    for row in found["learning_rates"]:
        spread = "-" if row["deviation"] is None else f"{row['deviation']:.4f}"
        numbers = (f"{row['mean']:.4f}", spread, f"{row['median']:.4f}", f"{row['best']:.4f}")
        rows.add_row(f"{row['learning_rate']:g}", str(row["runs"]), *numbers)
    console.print(rows)
    kept = found["kept"]
    console.print(f"kept: learning rate {kept['learning_rate']:g}, seed {kept['seed']}, in {found['model']}")
    table(kept["scores"])
