"""Questions whose answers are stretches of a passage: windows over the passage, answers read from their logits."""
