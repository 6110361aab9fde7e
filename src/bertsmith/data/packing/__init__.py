"""Shards become batches: one file = one packing = one name on the command line; packing.py is the contract."""
