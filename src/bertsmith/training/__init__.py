"""Training: runs of `pretrain` and `finetune`, the trainer and its loop, optimizers, schedules and checkpoints."""
