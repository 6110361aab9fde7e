"""One file = one schedule = one name in a recipe; schedule.py is the contract."""
