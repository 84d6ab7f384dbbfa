"""The schema of the outbox, step by step."""
