"""A model folder in use: text in, prediction out."""
