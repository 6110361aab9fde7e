"""Tasks: one file, one benchmark family or one kind of file of your own."""
