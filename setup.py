"""Everything is in setup.cfg; this file is for tools that still call it."""

from setuptools import setup

setup()
