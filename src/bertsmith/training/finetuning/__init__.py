"""Fine-tuning: a model folder and a task become a run folder; and scoring what came of it."""
