"""One file per objective: a head, its loss and its predictions; `objective.py` is the contract."""
