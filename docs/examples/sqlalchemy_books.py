"""An order is paid and booked once: outbox, relay, inbox. Ends by itself when that is done."""

import threading

from sqlalchemy import create_engine, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from gnsqsync import Message, Reader, Writer
from gnsqsync.contrib.sqlalchemy import Inbox, Outbox


class Base(DeclarativeBase):
    pass


class Entry(Base):
    __tablename__ = "entries"
    id: Mapped[int] = mapped_column(primary_key=True)
    order: Mapped[str]


engine = create_engine("sqlite:///books.sqlite3", connect_args={"timeout": 30})
sessions = sessionmaker(engine)
writer = Writer("127.0.0.1:4150", headers=True, outage="wait")
outbox = Outbox(Base.metadata, writer, engine=engine)
inbox = Inbox(Base.metadata)
booked = threading.Event()


@inbox.once(sessions)
def book(message: Message, session: Session) -> None:
    session.add(Entry(order=message.body.decode()))
    booked.set()


Base.metadata.create_all(engine)
with sessions.begin() as session:
    # Beside whatever else is to happen if, and only if, this commits.
    outbox.publish(session, "orders.paid", "17", key="order-17")

# In a process of its own; here it ends when nothing is due.
outbox.relay().run(until_empty=True)

reader = Reader("orders.paid", "books", book, nsqd_tcp_addresses="127.0.0.1:4150", headers=True)
with reader:
    booked.wait(10)
with sessions() as session:
    print("booked:", session.scalars(select(Entry.order)).all())
writer.close()
