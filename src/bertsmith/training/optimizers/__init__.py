"""One file = one optimiser = one name in a recipe; optimizer.py is the contract, adam.py what several are made of."""
