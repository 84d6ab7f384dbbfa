"""Sphinx: ``sphinx-build -W -b html docs docs/_build``."""

import re
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
sys.path.insert(0, str(ROOT / "docs"))

from gnsqsync import __version__  # noqa: E402

project = "gnsqsync"
copyright = "the gnsqsync authors"
version = release = __version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "module_table",
    "option_tables",
]
# Of a console only what is typed, also where it goes on in the next line.
copybutton_prompt_text = "$ "
copybutton_line_continuation_character = "\\"
napoleon_numpy_docstring = False
# A list in the text of the class, and no entry of its own for each field.
napoleon_use_ivar = True
# Who may call, and on which thread something is called.
napoleon_custom_sections = ["Threads"]
exclude_patterns = ["_build"]
# It asks no other site for fonts or scripts.
html_theme = "furo"
html_title = f"gnsqsync {version}"
html_static_path = ["_static"]
html_css_files = ["custom.css"]
html_search_scorer = str(ROOT / "docs" / "searching.js")
html_theme_options = {"navigation_with_keys": True, "top_of_page_buttons": []}

# Docstrings of gnsqsync.spark are read without Spark, too, those of the fixtures without pytest.
autodoc_mock_imports = [
    name for name in ("pyspark", "pyarrow", "pytest") if find_spec(name) is None
]
if find_spec("django.tasks") is None:
    # Before Django 6.
    autodoc_mock_imports += ["django.tasks", "django.utils.json"]
# Types stand in the signature and in the list of parameters, both from the annotations.
autodoc_typehints = "both"
autodoc_typehints_description_target = "documented"
autodoc_member_order = "bysource"
maximum_signature_line_length = 90
default_role = "any"

# Every name of ours that a text refers to must be there; names of others are not looked up,
# because that would need the network.
nitpicky = True
nitpick_ignore_regex = [
    ("py:.*", r"(?!gnsqsync\.).*"),
    # Types in signatures that users do not name: a str does in their place.
    (
        "py:class",
        r"gnsqsync\.(runtime\.base\.Runtime|addresses\.Address|django\.handlers\.Function"
        r"|flask\.extension\.(Function|Body|Result)|django\.handlers\.(Body|Result)|bodies\.T"
        r"|http\.transport\.HTTPKeywords"
        r"|embedded\.options\.(NsqdFlags|LookupdFlags))",
    ),
]


def escape_codes(app, what, name, obj, options, lines):
    """``E_ code`` in a docstring is not a link to a target called E."""
    lines[:] = [re.sub(r"\bE_(?= )", r"E\\_", line) for line in lines]


def link_citations(app, what, name, obj, options, lines):
    """A citation of the protocol in a docstring is a link to its section."""
    section = r"docs/protocol/[\w-]+#([\w-]+)"
    lines[:] = [re.sub(section, r":ref:`protocol-\1`", line) for line in lines]


def setup(app):
    app.connect("autodoc-process-docstring", escape_codes)
    app.connect("autodoc-process-docstring", link_citations)
