"""What a user has of their own text after some minutes on one GPU, beside what they would otherwise use."""
