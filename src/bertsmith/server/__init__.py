"""Models behind HTTP: the server, its routes, limits and web page."""
