"""Durable writes, worker processes, progress bars and devices."""
