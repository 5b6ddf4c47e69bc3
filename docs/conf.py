"""Sphinx configuration: ``make docs`` builds docs/_build/html, which works from a folder without a network."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # reproducible timings in the gallery

from sphinx.application import Sphinx  # noqa: E402

from equipoise import __version__  # noqa: E402

project = "equipoise"
author = "The equipoise developers"
copyright = f"%Y, {author}"  # noqa: A001
version = release = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
    "command_help",
    "mathml",
]
exclude_patterns = [
    "_build",
    "_ext",
    "examples/*.py",
    "examples/*.ipynb",
    "examples/backreferences",
    "sg_execution_times.rst",
]
smartquotes = False  # would turn the two hyphens of --option into a dash
suppress_warnings = ["config.cache"]  # sphinx_gallery_conf holds objects that cannot be pickled

# Every reference to one of this package's own names must resolve; other packages' inventories need a network.
nitpicky = True
nitpick_ignore_regex = [(r"py:.*", r"(?!equipoise\.).*"), (r"py:mod", r".*")]

# Markdown
myst_enable_extensions = ["amsmath", "attrs_block", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
myst_dmath_double_inline = True
myst_update_mathjax = False

# Reference
autosummary_generate = False
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
maximum_signature_line_length = 88
toc_object_entries_show_parents = "hide"
napoleon_use_ivar = True
napoleon_use_rtype = False
napoleon_custom_sections = ["Shapes"]
add_module_names = False
html_math_renderer = "mathml"

# Examples
sphinx_gallery_conf = {
    "examples_dirs": str(HERE.parent / "examples"),
    "gallery_dirs": "examples",
    "filename_pattern": r"/plot_",
    "within_subsection_order": "FileNameSortKey",
    "image_scrapers": ("matplotlib",),
    "reset_modules": ("matplotlib",),
    "abort_on_example_error": True,
    "min_reported_time": 60,
    "write_computation_times": False,
    "show_memory": False,
    "show_signature": False,
    "download_all_examples": False,
    "remove_config_comments": True,
    "plot_gallery": True,
    "copyfile_regex": r"",
    "backreferences_dir": "examples/backreferences",
    "doc_module": ("equipoise",),
    "thumbnail_size": (400, 280),
}
copybutton_exclude = ".linenos, .gp, .go"

# HTML
html_theme = "furo"
html_title = "equipoise"
html_static_path = ["_static"]
html_css_files = ["custom.css"]
html_copy_source = False
html_show_sphinx = False
html_theme_options = {
    "navigation_with_keys": True,
    "light_css_variables": {"color-brand-primary": "#0b6e4f", "color-brand-content": "#0b6e4f"},
    "dark_css_variables": {"color-brand-primary": "#5fd3a8", "color-brand-content": "#5fd3a8"},
}
pygments_style = "friendly"
pygments_dark_style = "monokai"


def correct_backlinks(app: Sphinx, pagename: str, _template: str, context: dict[str, Any], _doctree: Any) -> None:
    """Corrects viewcode's links from a source page to the reference.

    viewcode assumes one prefix per module, but public names are documented as ``equipoise.Name`` and others with the
    full path of their module.
    """
    if not pagename.startswith("_modules/equipoise/"):
        return
    module = pagename.removeprefix("_modules/").replace("/", ".")
    objects = app.env.domains.python_domain.objects

    def correct(match: re.Match[str]) -> str:
        name = match[1].removeprefix(f"{module}.").removeprefix("equipoise.")
        full = next((full for full in (f"equipoise.{name}", f"{module}.{name}") if full in objects), match[1])
        return f'#{full}"'

    context["body"] = re.sub(r'#(equipoise\.[\w.]+)"', correct, context["body"])


def setup(app: Sphinx) -> None:
    """Connects the correction."""
    app.connect("html-page-context", correct_backlinks)
