"""Terminal output of the commands for tokenizers, shards, models, recipes and the machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bertsmith.tokenizers.tokenizer import Tokenizer
from bertsmith.types import Encoded

if TYPE_CHECKING:
    from bertsmith.data.shards import FileReport

console = Console(highlight=False)
TOKEN_STYLES = ("black on bright_cyan", "black on bright_yellow")  # alternating, so that token boundaries show
UNKNOWN_STYLE = "white on red"
MAX_ROWS = 40
WIDE = 110  # columns of a terminal from which tables show all their columns


def plain_table(*left: str, right: tuple[str, ...] = (), show_header: bool = True, title: str = "") -> Table:
    """A table without lines: left-aligned columns, then right-aligned ones."""
    grid = Table(box=None, pad_edge=False, header_style="dim", show_header=show_header)
    grid.title, grid.title_justify, grid.title_style = title or None, "left", "bold"
    for heading in left:
        grid.add_column(Text(heading))
    for heading in right:
        grid.add_column(Text(heading), justify="right", no_wrap=True)
    return grid


def facts_table(facts: Mapping[str, Any], *, title: str = "") -> None:
    """Prints names and values in two columns."""
    if title:
        console.print(Text(title, "bold"), soft_wrap=True)
    grid = plain_table(show_header=False)
    grid.add_column(style="dim")
    grid.add_column(overflow="fold")
    for name, value in facts.items():
        grid.add_row(name.replace("_", " "), formatted(name, value))
    console.print(grid)


def formatted(name: str, value: Any) -> str:
    """A value in readable form: thousands separators, rates in percent, bytes in MB."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "-"}[value]
    if isinstance(value, int):
        return f"{value / 1e6:,.1f} MB" if name.endswith("bytes") or name == "bytes" else f"{value:,}"
    if isinstance(value, float):
        fraction = (name.endswith(("_rate", "_used")) and name != "learning_rate") or name == "held_out"
        return f"{value:.2%}" if fraction else f"{value:.3f}" if abs(value) >= 0.001 or value == 0 else f"{value:.3g}"
    if isinstance(value, Mapping):
        return "  ".join(f"{key} {item}" for key, item in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def tokenizer_facts(tokenizer: Tokenizer) -> dict[str, Any]:
    roles = {role: token for role, token in vars(tokenizer.special_tokens).items() if token}
    return {
        "kind": tokenizer.kind,
        "vocab_size": tokenizer.vocab_size,
        "fingerprint": tokenizer.fingerprint,
        "specials": {token: tokenizer.token_to_id(token) for token in dict.fromkeys(roles.values())},
    }


def tokenizer_card(tokenizer: Tokenizer, **facts: Any) -> None:
    facts_table(facts | tokenizer_facts(tokenizer))
    entries = tokenizer.tokens()
    indices = np.linspace(0, len(entries) - 1, num=min(len(entries), 24)).astype(int)
    sample = "  ".join(entries[index] for index in indices)
    console.print("[dim]entries, from first to last:[/dim]", sample, markup=True)


def encoding_facts(tokenizer: Tokenizer, texts: Sequence[str], encoded: Sequence[Encoded]) -> dict[str, Any]:
    """The tokens of one text, or of a pair, with special tokens."""
    unknown = sum(int(np.count_nonzero(tokenizer.is_unknown(one.ids))) for one in encoded)
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


def encoding_table(
    tokenizer: Tokenizer, texts: Sequence[str], encoded: Sequence[Encoded], facts: Mapping[str, Any]
) -> None:
    """The text with its tokens coloured, then one row per token of the input with special tokens."""
    for text, one in zip(texts, encoded, strict=True):
        console.print(_coloured(text, one, tokenizer))
    rows = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("", "token", "id", "segment", "start", "end"):
        rows.add_column(heading, justify="left" if heading == "token" else "right")
    columns = zip(facts["tokens"], facts["ids"], facts["segments"], facts["offsets"], facts["texts"], strict=True)
    for index, (token, number, segment, (start, end), source) in enumerate(columns):
        if index == MAX_ROWS:
            rows.add_row("…", f"{len(facts['ids']) - MAX_ROWS} more (--json shows all)", "", "", "", "")
            break
        style = "red" if number in tokenizer.unknown_ids else "dim" if source < 0 else ""
        offsets = ("", "") if source < 0 else (str(start), str(end))
        rows.add_row(str(index), Text(token), str(number), str(segment), *offsets, style=style)
    console.print(rows)
    console.print(
        f"{len(facts['ids'])} tokens with special tokens, {facts['tokens_per_word']:.2f} per word, "
        f"unknown {facts['unknown_rate']:.1%}"
    )


def encoding_sample(tokenizer: Tokenizer, text: str, encoded: Encoded) -> None:
    """The coloured text and its tokens on two lines."""
    console.print(_coloured(text, encoded, tokenizer))
    console.print(Text("  " + " ".join(tokenizer.id_to_token(int(number)) for number in encoded.ids), style="dim"))


def _coloured(text: str, encoded: Encoded, tokenizer: Tokenizer) -> Text:
    coloured, unknown = Text(text), tokenizer.unknown_ids
    for index, (number, (start, end)) in enumerate(zip(encoded.ids.tolist(), encoded.offsets.tolist(), strict=True)):
        coloured.stylize(UNKNOWN_STYLE if number in unknown else TOKEN_STYLES[index % 2], start, end)
    return coloured


def shard_facts(index: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The size of a shard set."""
    from bertsmith.data.shards import Shards  # not for commands that only apply a model

    train, held_out = Shards.open(folder, "train"), Shards.open(folder, "held-out")
    size = sum(path.stat().st_size for path in folder.glob("*.shard"))
    return {
        "folder": str(folder),
        "tokenizer": train.fingerprint,
        "documents": train.documents,
        "sentences": train.sentences,
        "tokens": train.tokens,
        "held_out_documents": held_out.documents,
        "held_out_tokens": held_out.tokens,
        **index.get("counts", {}),
        "tokens_per_sentence": train.tokens / max(train.sentences, 1),
        **({"unknown_word_rate": index["unknown_word_rate"]} if "unknown_word_rate" in index else {}),
        "bytes_per_token": size / max(train.tokens + held_out.tokens, 1),
        "bytes": size,
    }


def verified_file(report: FileReport) -> None:
    status = Text("ok     ", "green") if report.ok else Text("DAMAGED", "red")
    size = f"{report.tokens:,} tokens" if report.tokens else f"{report.bytes:,} bytes"
    console.print(status, f"{report.name:<36}", f"{size:>22}", "" if report.ok else report.message, soft_wrap=True)


def model_card(facts: Mapping[str, Any]) -> None:
    plain = {name: facts[name] for name in ("folder", "architectures", "objectives", "tokenizer", "checksums", "notes")}
    facts_table({name: value for name, value in plain.items() if value != []})
    facts_table(facts["encoder"], title="encoder")
    rows = plain_table(show_header=False, title="parameters")
    total = facts["parameters"]
    for name, count in facts["parameters_by_module"].items():
        rows.add_row(Text(name, "dim"), f"{count:>13,}", "▇" * max(round(40 * count / total), 1))
    rows.add_row(Text("total", "dim"), f"{total:>13,}", "")
    console.print(rows)
    memory = facts["memory"]
    title = f"memory, estimated for a batch of {memory['batch']} × {memory['length']} tokens"
    sizes = {"disk_bytes": facts["disk_bytes"]} | {name: memory[name] for name in memory if name.endswith("bytes")}
    facts_table(sizes, title=title)


def recipe_list(recipes: Sequence[Mapping[str, Any]], finetuning: Sequence[Mapping[str, str]]) -> None:
    """One line per recipe, those for pre-training first; a narrow terminal shows fewer columns."""
    counts = ("parameters", "max_length", "batch_size", "steps") if console.width >= WIDE else ("parameters",)
    grid = plain_table("recipe", right=counts)
    grid.columns[0].no_wrap = True
    grid.add_column("about")
    for one in recipes:
        numbers = (f"{one[name]:,}" for name in counts)
        grid.add_row(Text(one["recipe"], "bold"), *numbers, Text(one["about"], "dim"))
    console.print(grid)
    console.print("\nfor fine-tuning (bertsmith finetune MODEL -t RECIPE):")
    grid = plain_table("recipe", right=())
    grid.columns[0].no_wrap = True
    grid.add_column("about")
    for one in finetuning:
        grid.add_row(Text(one["recipe"], "bold"), Text(one["about"], "dim"))
    console.print(grid)


def preflight_check(finding: Mapping[str, Any]) -> None:
    """One line of `bertsmith check`."""
    style = {"ok": "green", "note": "yellow", "warning": "bold yellow", "problem": "red"}[finding["state"]]
    console.print(Text(f"{finding['state']:<8}", style), f"{finding['check']:<14}", finding["text"], soft_wrap=True)


def doctor_card(facts: Mapping[str, Any]) -> None:
    facts_table({name: value for name, value in facts.items() if name not in ("ok", "problems", "numeric", "ceilings")})
    if "ceilings" in facts:
        device_limits(facts["ceilings"])
    for check in facts["numeric"]:
        status = "[green]ok[/green]" if check["ok"] else "[red]WRONG[/red]"
        difference = f"relative error {check['error']:.1e} against float64 on the CPU"
        console.print(f"{status} {check['precision']} on {facts['device']}: {difference}", markup=True)
    verdict = "This machine can run bertsmith." if facts["ok"] else "; ".join(facts["problems"])
    console.print(Text(verdict, "green" if facts["ok"] else "red"))


def device_limits(limits: Sequence[Mapping[str, Any]]) -> None:
    """The measured peak rates of a device."""
    grid = plain_table("operation", "precision", right=("measured",))
    for one in limits:
        decimals = 2 if one["unit"] == "ms" else 0
        grid.add_row(one["what"], one["precision"], f"{one['value']:,.{decimals}f} {one['unit']}")
    console.print(grid)
