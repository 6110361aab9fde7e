"""Training: batches and losses in, changed weights and checkpoints out. Knows no encoder, objective, task or text."""
