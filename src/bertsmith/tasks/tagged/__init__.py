"""Words that get tags, and the entities that tags spell: column files, schemes, windows over words, entities read."""
