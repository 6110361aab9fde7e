"""The documentation site: Sphinx, MyST, Furo. The references of commands and Python are generated when it is built."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import api_tables  # noqa: E402
import command_pages  # noqa: E402

project = "bertsmith"
author = "the bertsmith authors"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = "bertsmith"
exclude_patterns = ["_build"]
myst_heading_anchors = 3
default_role = "code"  # docstrings have single backticks
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 100

command_pages.write(HERE / "commands")


def setup(app):  # called by Sphinx
    app.add_directive("fields", api_tables.Fields)
