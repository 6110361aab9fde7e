"""Experiments on the mechanisms of the Transformer, for docs/papers/transformer.md."""
