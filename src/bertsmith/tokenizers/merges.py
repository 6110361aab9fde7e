"""What the two byte-pair encodings share: vocabulary and merges out of a backend or a folder, and into its files.

Knows the file formats (vocab.json, merges.txt, tokenizer.json), not what the symbols mean.
"""

from __future__ import annotations

import json
from typing import Any

import tokenizers

from bertsmith.errors import DataError
from bertsmith.tokenizers.folder import Folder, in_order, read_json

VOCABULARY = "vocab.json"
MERGES = "merges.txt"

Merges = list[tuple[str, str]]


def merges_of(backend: tokenizers.Tokenizer) -> Merges:
    """The merges of a backend, in the order in which they are applied."""
    return _pairs(json.loads(backend.to_str())["model"]["merges"], "tokenizer.json")


def read_merges(contents: Folder) -> tuple[list[str], Merges]:
    """Tokens by id and merges of a folder: from tokenizer.json if it has one, else from vocab.json and merges.txt."""
    if contents.definition:
        tokens, written = contents.vocabulary(), contents.model.get("merges")
    else:
        tokens = in_order(read_json(contents.path / VOCABULARY), contents.path / VOCABULARY)
        lines = contents.text(MERGES).replace("\r\n", "\n").split("\n")
        written = [line for line in lines if line and not line.startswith("#version")]
    if not isinstance(written, list):
        raise DataError(f"{contents.path / 'tokenizer.json'} has no merges: it holds no byte-pair encoding")
    return tokens, _pairs(written, contents.path)


def merges_files(backend: tokenizers.Tokenizer, merges: Merges) -> dict[str, bytes]:
    """vocab.json and merges.txt."""
    ids = backend.get_vocab(with_added_tokens=False)
    ordered = {token: number for number, token in enumerate(in_order(ids, "the vocabulary"))}
    lines = ["#version: 0.2", *(f"{left} {right}" for left, right in merges)]
    return {
        VOCABULARY: json.dumps(ordered, ensure_ascii=False).encode(),
        MERGES: "".join(f"{line}\n" for line in lines).encode(),
    }


def _pairs(written: list[Any], where: object) -> Merges:
    """Merges as pairs; older files have them as `left right`."""
    pairs: Merges = []
    for number, merge in enumerate(written):
        parts = merge.split(" ") if isinstance(merge, str) else merge
        if len(parts) != 2:
            raise DataError(f"{where}: merge {number} is {merge!r}, not two symbols")
        pairs.append((parts[0], parts[1]))
    return pairs
