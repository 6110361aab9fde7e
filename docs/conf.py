"""The documentation site: Sphinx, MyST, Furo. Pages about verbs are made of the command line when the site is built."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import verb_pages  # noqa: E402

project = "bertsmith"
author = "the bertsmith authors"
extensions = ["myst_parser"]
html_theme = "furo"
html_title = "bertsmith"
exclude_patterns = ["_build"]
myst_heading_anchors = 3

verb_pages.write(HERE / "verbs")
