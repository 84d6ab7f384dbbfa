"""The version, alone in a module so that a build reads it without importing the package."""

__version__ = "0.1.0"
