"""One file = one encoder = one name on the command line; `encoder.py` is what all of them are."""
