"""Model folders in and out: every folder is one that transformers reads too. Runs no code that a folder brings.

`model_folder` saves and opens, `importing` takes over what may only be touched with care (pickled weights) or was
never a model folder (TensorFlow checkpoints).
"""
