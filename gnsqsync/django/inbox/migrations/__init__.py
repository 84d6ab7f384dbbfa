"""The schema of the inbox, step by step."""
