"""An outbox on sqlite3: an order and its message are written in one transaction.

A relay publishes what is committed. Nothing is lost if the process ends in between; a message may
come twice, with the same key.
"""

import json
import sqlite3

from gnsqsync import Writer

TABLES = """
CREATE TABLE IF NOT EXISTS orders (number INTEGER PRIMARY KEY);
CREATE TABLE IF NOT EXISTS outbox (
    id INTEGER PRIMARY KEY, topic TEXT, body BLOB, headers TEXT, key TEXT
);
"""
ADD = "INSERT INTO outbox (topic, body, headers, key) VALUES (?, ?, ?, ?)"
OLDEST = "SELECT id, topic, body, headers, key FROM outbox ORDER BY id LIMIT 100"


class Outbox:
    """Messages in a table, until nsqd has said OK."""

    def __init__(self, writer: Writer) -> None:
        self.encoder = writer.encoder

    def add(self, database: sqlite3.Connection, topic: str, *bodies: bytes) -> None:
        """Write messages within the transaction of the caller."""
        for prepared in self.encoder.prepare(topic, bodies):
            headers = json.dumps(prepared.headers)
            database.execute(ADD, (prepared.topic, prepared.body, headers, prepared.key))

    def relay(self, database: sqlite3.Connection) -> int:
        """Publish the oldest messages. Return their number."""
        rows = database.execute(OLDEST).fetchall()
        for id, topic, body, headers, key in rows:
            sealed = self.encoder.seal(body, headers=json.loads(headers), key=key)
            self.encoder.publish(topic, [sealed])
            with database:
                database.execute("DELETE FROM outbox WHERE id = ?", (id,))
        return len(rows)


def main() -> None:
    database = sqlite3.connect("orders.sqlite3")
    database.executescript(TABLES)
    with Writer("127.0.0.1:4150", headers=True) as writer:
        outbox = Outbox(writer)
        with database:
            database.execute("INSERT INTO orders (number) VALUES (7)")
            outbox.add(database, "orders", b'{"number": 7}')
        try:
            with database:
                outbox.add(database, "orders", b'{"number": 7}')
                database.execute("INSERT INTO orders (number) VALUES (7)")
        except sqlite3.IntegrityError:
            print("order 7 is there already, and leads to one message")
        print(f"published {outbox.relay(database)}")
    database.close()


if __name__ == "__main__":
    main()
