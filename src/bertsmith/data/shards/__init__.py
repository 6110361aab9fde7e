"""Tokenized documents on disk: write them (`ShardBuilder`), read any span of tokens (`Shards`), check them (`verify`).

docs/shards.md describes the format.
"""

from bertsmith.data.shards.builder import ShardBuilder
from bertsmith.data.shards.folder import FileReport, finished_index, remove_shard_set, verify
from bertsmith.data.shards.format import EncodedDocuments
from bertsmith.data.shards.reader import Shards, SpelledShards

__all__ = [
    "EncodedDocuments",
    "FileReport",
    "ShardBuilder",
    "Shards",
    "SpelledShards",
    "finished_index",
    "remove_shard_set",
    "verify",
]
