"""`text`: a corpus becomes a tokenizer and shards with held-out documents."""

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
PART = 60 * 2**20  # bytes of files that travel together


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """How text is made ready."""

    tokenizer: Path | None = None  # one is trained where none is given
    kind: str = "wordpiece"
    vocab_size: int = 30_522
    cased: bool = False
    held_out: float = 0.01
    shard_tokens: int = 2**23
    workers: int | None = None


def prepare_text(paths: Sequence[Path], output: Path, how: Preparation, *, quiet: bool) -> dict[str, Any]:
    """Writes OUTPUT/tokenizer and OUTPUT/shards, each unless it is there, and says what they are."""
    tokenizer, shards = how.tokenizer or output / TOKENIZER, output / SHARDS
    if how.tokenizer is None and not tokenizer.exists():
        changes = ["lowercase=false"] if how.cased else []
        settings = config.override(config.find_kind("bertsmith.tokenizers", how.kind).Config(), changes)
        size = {"vocab_size": how.vocab_size, "workers": how.workers}
        prepare.train_tokenizer(paths, tokenizer, settings=settings, quiet=quiet, **size)
    if not (shards / "index.json").exists():
        prepare.prepare(
            paths,
            shards,
            tokenizer=tokenizer,
            held_out=how.held_out,
            shard_tokens=how.shard_tokens,
            workers=how.workers,
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
    """The files of a shard set in groups that travel together, none of them over `PART` bytes if it can be."""
    found: list[list[str]] = [[]]
    size = 0
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        size += path.stat().st_size
        if size > PART and found[-1]:
            found.append([])
            size = path.stat().st_size
        found[-1].append(str(path.relative_to(folder)))
    return found
