"""The documentation site: Sphinx, MyST, Furo. The command reference is generated when the site is built."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import command_pages  # noqa: E402

project = "bertsmith"
author = "the bertsmith authors"
extensions = ["myst_parser"]
html_theme = "furo"
html_title = "bertsmith"
exclude_patterns = ["_build"]
myst_heading_anchors = 3

command_pages.write(HERE / "commands")
