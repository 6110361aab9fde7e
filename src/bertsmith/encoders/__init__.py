"""One file per encoder; the file name is its name on the command line. `encoder.py` is the contract."""
