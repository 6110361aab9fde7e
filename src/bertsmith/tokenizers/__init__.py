"""Tokenizers: text to ids and back, without torch.

A kind of tokenizer is one module of this package (`wordpiece`, `byte_bpe`, ...); its name is the name of the kind.
"""
