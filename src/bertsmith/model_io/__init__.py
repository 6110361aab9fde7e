"""Model folders: `model_folder` saves and opens them, natively or as transformers does; no code of a folder is run.

`importers` converts pickled weights and TensorFlow checkpoints into model folders.
"""
