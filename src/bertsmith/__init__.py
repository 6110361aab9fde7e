"""bertsmith: from raw text to your own working BERT."""

__version__ = "0.1.0"
