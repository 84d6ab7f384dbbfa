"""An outbox and an inbox over any database: rows and messages, relay, schedule, messages once.

Knows a Store, which Django and SQLAlchemy are, and the Writer of a relay. Must not know Django,
SQLAlchemy or the command line.
"""
