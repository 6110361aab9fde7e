"""Studies: many fine-tuning runs, summarised in one table beside the numbers of the paper."""
