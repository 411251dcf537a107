"""The manual as Sphinx builds it: `make manual`."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

project = "Cluster-on-Demand"
version = release = tomllib.loads((HERE.parent / "pyproject.toml").read_text())["project"][
    "version"
]
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["examples", "systemd"]
nitpicky = True
myst_heading_anchors = 4
myst_links_external_new_tab = False
suppress_warnings = ["misc.highlighting_failure"]
highlight_language = "none"
html_theme = "furo"
html_title = project
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
html_permalinks_icon = "#"
