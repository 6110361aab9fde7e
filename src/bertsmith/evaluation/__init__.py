"""A fine-tuned model on a task: how good it is and where it errs, and predictions for files without answers."""

from bertsmith.evaluation.evaluation import Evaluation, evaluate

__all__ = ["Evaluation", "evaluate"]
