"""The long description; all else is in pyproject.toml."""

import re
from pathlib import Path

from setuptools import setup

README = Path(__file__).with_name("README.rst").read_text(encoding="utf-8")
# `text <docs/page.rst>`_ becomes text: on a package index such a link leads nowhere.
RELATIVE_LINK = re.compile(r"`([^`<]+?)\s*<(?!https?:)[^>]+>`__?")

setup(
    long_description=RELATIVE_LINK.sub(r"\1", README),
    long_description_content_type="text/x-rst",
)
