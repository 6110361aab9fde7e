"""`lineage`: every model from word vectors to ELECTRA, trained on one text for the same minutes, on the same tasks."""
