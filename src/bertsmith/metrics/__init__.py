"""Evaluation metrics, equal to the official scripts, and their confidence intervals. Plain values and numpy only."""
