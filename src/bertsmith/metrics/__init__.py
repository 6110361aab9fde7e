"""Scores equal to the official ones, on plain values and numpy; intervals round them. Knows no model and no file."""
