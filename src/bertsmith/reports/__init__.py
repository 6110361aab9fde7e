"""Reports on training runs, finished or in progress: one run folder, several side by side, and an HTML page."""
