"""Inference: texts in, predictions out."""
