"""Strings to ids and back. Knows no corpus, no model and no torch.

A kind of tokenizer is one file here (`wordpiece`, `byte_bpe`, ...): the file's name is the kind's name everywhere.
"""
