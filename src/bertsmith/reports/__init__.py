"""Runs looked at, at any moment of their lives: one run folder, several side by side, and a page about them."""
