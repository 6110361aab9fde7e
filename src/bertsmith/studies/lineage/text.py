"""The text of the study: a tokenizer and a shard set per kind, and the held-out texts that all models are evaluated on.

Held-out documents are chosen by a hash of their text, so that they are the same in all shard sets.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from bertsmith import config
from bertsmith.data import prepare
from bertsmith.data.corpus import Corpus
from bertsmith.data.parallel import ParallelCorpus
from bertsmith.data.shards import Shards
from bertsmith.data.work_units import document_hash, is_held_out
from bertsmith.errors import DataError
from bertsmith.studies.lineage.models import PAIRS, TOKENIZERS
from bertsmith.studies.lineage.settings import TEXT, LineageConfig, read_part, write_part
from bertsmith.studies.stored_results import read_result, write_result
from bertsmith.system.durable import Disk

TOKENIZER, SHARDS, HELD_OUT = "tokenizer", "shards", "held_out.json"
HELD_OUT_BYTES = {"tiny": 20_000, "quick": 400_000}  # of held-out text
DOCUMENT = 2000  # characters of each held-out text
FEWEST = 4  # held-out documents


def prepare_text(study: LineageConfig, kind: str, *, quiet: bool) -> dict[str, Any]:
    """Trains the tokenizer and writes the shards of that kind; returns their facts."""
    folder = study.folder(TEXT, kind)
    key = {"settings": {"tokenizer": TOKENIZERS[kind], "vocab_size": study.vocabulary, "held_out": study.held_out}}
    key["settings"] |= {"files": _sizes(study.pairs if kind == PAIRS else study.text)}
    known = read_part(folder, key)
    if known is not None:
        return known
    Disk().make_folder(folder)
    source, tokenizer = _source(study, kind), folder / TOKENIZER
    name, changes = TOKENIZERS[kind]
    settings = config.override(config.find_kind("bertsmith.tokenizers", name).Config(), changes)
    how: dict[str, Any] = {"workers": study.workers, "quiet": quiet}
    prepare.train_tokenizer(source, tokenizer, settings=settings, vocab_size=study.vocabulary, overwrite=True, **how)
    prepare.prepare(source, folder / SHARDS, tokenizer=tokenizer, held_out=study.held_out, **how)
    train, held_out = Shards.open(folder / SHARDS), Shards.open(folder / SHARDS, "held-out")
    facts = {
        "kind": name,
        "settings": list(changes),
        "vocab_size": train.vocab_size,
        "tokens": train.tokens,
        "documents": train.documents,
        "held_out_documents": held_out.documents,
        "tokenizer": train.fingerprint,
        "data": train.digest,
    }
    write_part(folder, key, facts)
    return facts


def held_out_texts(study: LineageConfig) -> list[str]:
    """The beginnings of the first held-out documents; they are read from the text once."""
    path, key = study.output / TEXT / HELD_OUT, {"held_out": study.held_out}
    known = read_result(path, key)
    if known is not None:
        return list(known["texts"])
    texts, size = list[str](), 0
    for document in Corpus(study.text):
        if is_held_out(document_hash(document.text), study.held_out):
            texts.append(document.text[:DOCUMENT])
            size += len(texts[-1].encode())
        if size >= HELD_OUT_BYTES[study.size]:
            break
    if len(texts) < FEWEST:
        found = f"{len(texts)} documents of the text are held out to evaluate the models"
        raise DataError(f"{found}, at least {FEWEST} are needed: pass a larger --held-out, or more --text")
    write_result(path, key, {"texts": texts})
    return texts


def fingerprint(texts: list[str]) -> str:
    """Sixteen hexadecimal digits of texts."""
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]


def _source(study: LineageConfig, kind: str) -> Any:
    if kind == PAIRS:
        return ParallelCorpus(study.pairs)
    return [*map(Path, study.text)]


def _sizes(paths: tuple[str, ...]) -> list[list[Any]]:
    """The names and sizes of the files of a corpus: moved files are the same."""
    return [[path.name, path.stat().st_size] for path in Corpus(paths).files]
