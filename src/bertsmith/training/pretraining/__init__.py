"""Pre-training: shards and a recipe become a run folder with models in it."""

from bertsmith.training.pretrain import pretrain

__all__ = ["pretrain"]
