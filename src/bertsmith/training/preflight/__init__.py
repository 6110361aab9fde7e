"""Would this run work? The checks that can be made before one, with a few steps of it, and nothing written."""
