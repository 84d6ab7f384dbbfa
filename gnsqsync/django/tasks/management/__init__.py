"""The management commands; Django finds them here by name."""
