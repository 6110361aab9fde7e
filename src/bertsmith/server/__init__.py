"""Models behind HTTP: who may ask how much, how long it may take, and what the answers look like."""
