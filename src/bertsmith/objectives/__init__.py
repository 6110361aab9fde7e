"""One file = one question put to an encoding; `objective.py` is what all of them are."""
