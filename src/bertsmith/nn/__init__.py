"""Layers that know tensors and nothing else: no objectives, no text, no files."""
