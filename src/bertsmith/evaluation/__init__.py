"""Evaluation of fine-tuned models: scores, error analysis, and predictions for files."""

from bertsmith.evaluation.evaluation import Evaluation, evaluate

__all__ = ["Evaluation", "evaluate"]
