"""Shards -> batches: one file per packing, named as `packing.kind`; packing.py is the contract."""
