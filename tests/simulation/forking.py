"""A fork in the middle of a history: a real one, whose child goes on with the task that forked.

In the child the connections of the parent are the parent's still: no byte and no end of them may
come from it. A Writer works there anew; a Reader does not, and says so.
"""

from __future__ import annotations

import os
import pickle
import traceback
from typing import TYPE_CHECKING

from gnsqsync.errors import NSQError

if TYPE_CHECKING:
    from tests.simulation.history import History

__all__ = ["fork"]


def fork(history: History) -> None:
    """By a task of the parent. What its child found becomes the parent's."""
    scheduler = history.scheduler
    reading, writing = os.pipe()
    # The hooks that run in the child must not wait: nobody would wake them.
    preempts, scheduler.preempts = scheduler.preempts, False
    scheduler.is_forking = True
    child = os.fork()
    scheduler.is_forking = False
    if child:
        scheduler.preempts = preempts
        os.close(writing)
        with os.fdopen(reading, "rb") as file:
            data = file.read()
        os.waitpid(child, 0)
        found = pickle.loads(data) if data else ["the child of a fork ended without a word"]
        for text in found:
            history.journal.violated(f"in the child of a fork: {text}")
        return
    os.close(reading)

    def end() -> None:
        with os.fdopen(writing, "wb") as file:
            pickle.dump(history.journal.violations, file)
        os._exit(0)

    history.is_child = True
    history.journal.violations.clear()
    task = scheduler.current
    assert task is not None
    scheduler.keep_only(task)
    scheduler.on_dead_end = end
    history.network.leave_to_parent()
    try:
        _live(history)
    except BaseException as error:
        history.journal.violated("".join(traceback.format_exception(error)))
    end()


def _live(history: History) -> None:
    journal, scheduler = history.journal, history.scheduler
    for actor in history.readers:
        if actor.reader is not None:
            actor.reader.stop(0.0)
    for writer_actor in history.writers:
        writer = writer_actor.writer
        if writer is None or writer_actor.has_closed:
            continue
        limit = writer_actor.publish_timeout
        for number in range(3):
            record = writer_actor.record_in_child(number)
            began = scheduler.now
            try:
                writer.publish(writer_actor.topic, record.body)
            except NSQError as error:
                if history.is_calm and limit >= 5.0:
                    journal.violated(f"a publish failed: {error!r}")
            took = scheduler.now - began
            if took > limit + 0.25:
                journal.violated(f"a publish took {took:.3f} s of {limit:g}")
        writer.close()
    history.sleep(0.1)
    for task in scheduler.tasks.values():
        if task is not scheduler.current:
            journal.violated(f"{task.name} is left, and waits for {task.waits_for or '?'}")
    for end in history.network.open:
        if end.host == "client" and not end.is_inherited:
            journal.violated(f"a connection to {end.peer.address} is left")
