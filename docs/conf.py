"""How the pages of this folder are built: `ops/docs`."""

project = "Steersman"
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
html_theme = "alabaster"
html_show_copyright = False
myst_heading_anchors = 3
# `topics.txt` is read by programs, and offered as it is.
html_extra_path = ["topics.txt"]
nitpicky = True
