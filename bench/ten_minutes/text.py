"""`text`: trains a tokenizer and writes shards with held-out documents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.ten_minutes import results
from bertsmith import config
from bertsmith.data import prepare
from bertsmith.data.shards import Shards

TOKENIZER, SHARDS, FACTS = "tokenizer", "shards", "text.json"
PART = 60 * 2**20  # bytes of files transferred together


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """Settings of the preparation."""

    tokenizer: Path | None = None  # None: train one
    kind: str = "wordpiece"
    vocab_size: int = 30_522
    cased: bool = False
    held_out: float = 0.01
    shard_tokens: int = 2**23
    workers: int | None = None


def prepare_text(paths: Sequence[Path], output: Path, preparation: Preparation, *, quiet: bool) -> dict[str, Any]:
    """Writes OUTPUT/tokenizer and OUTPUT/shards where missing; returns their facts."""
    tokenizer, shards = preparation.tokenizer or output / TOKENIZER, output / SHARDS
    if preparation.tokenizer is None and not tokenizer.exists():
        changes = ["lowercase=false"] if preparation.cased else []
        settings = config.override(config.find_kind("bertsmith.tokenizers", preparation.kind).Config(), changes)
        size = {"vocab_size": preparation.vocab_size, "workers": preparation.workers}
        prepare.train_tokenizer(paths, tokenizer, settings=settings, quiet=quiet, **size)
    if not (shards / "index.json").exists():
        prepare.prepare(
            paths,
            shards,
            tokenizer=tokenizer,
            held_out=preparation.held_out,
            shard_tokens=preparation.shard_tokens,
            workers=preparation.workers,
            quiet=quiet,
        )
    train, held_out = Shards.open(shards), Shards.open(shards, "held-out")
    facts = {
        "shards": str(shards),
        "data": train.digest,
        "tokenizer": train.fingerprint,
        "vocab_size": train.vocab_size,
        "tokens": train.tokens,
        "documents": train.documents,
        "held_out_tokens": held_out.tokens,
        "held_out_documents": held_out.documents,
        "parts": parts(shards),
    }
    results.write(output / FACTS, facts)
    return facts


def parts(folder: Path) -> list[list[str]]:
    """The files of a shard set in groups of at most `PART` bytes where possible."""
    groups: list[list[str]] = [[]]
    size = 0
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        size += path.stat().st_size
        if size > PART and groups[-1]:
            groups.append([])
            size = path.stat().st_size
        groups[-1].append(str(path.relative_to(folder)))
    return groups
