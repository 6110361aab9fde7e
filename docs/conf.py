"""The documentation site: Sphinx, MyST, Furo."""

project = "bertsmith"
author = "the bertsmith authors"
extensions = ["myst_parser"]
html_theme = "furo"
html_title = "bertsmith"
exclude_patterns = ["_build"]
myst_heading_anchors = 3
