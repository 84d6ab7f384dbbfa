"""The parts of the Django app that need no database."""
