"""Tokenized documents on disk: write them (`ShardBuilder`), read any span of tokens (`Shards`), check them (`verify`).

docs/shards.md describes the format.
"""

from bertsmith.data.shards.builder import ShardBuilder
from bertsmith.data.shards.folder import FileReport, remove_shard_set, verify
from bertsmith.data.shards.format import EncodedDocuments, token_type
from bertsmith.data.shards.reader import Part, Shards

__all__ = [
    "EncodedDocuments",
    "FileReport",
    "Part",
    "ShardBuilder",
    "Shards",
    "remove_shard_set",
    "token_type",
    "verify",
]
