"""The schema of the results, step by step."""
