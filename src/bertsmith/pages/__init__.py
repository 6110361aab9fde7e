"""Pages that stand alone: one HTML file with styles, script and data inside, that asks for nothing."""
