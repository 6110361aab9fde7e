"""Pre-training: shards and a recipe become a run folder with models in it."""

from bertsmith.training.pretraining.work import pretrain

__all__ = ["pretrain"]
