"""Studies: many fine-tunings that answer one question, as one table beside the numbers of the paper."""
