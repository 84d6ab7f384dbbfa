"""Tasks as a project has them; they know no backend."""

import os
import time
from pathlib import Path

from django.db import connection
from django.tasks import task

from shop.models import Order

FOLDER = Path(__file__).parent.parent
# Tests replace the value, the exception and the text of the tasks below.
GIVEN, ERROR, TEXT = None, KeyError(), ""


@task
def pack(number, worker=""):
    Order.objects.create(number=number, worker=worker)
    return {"packed": number}


@task(queue_name="mail")
def greet(name):
    return f"Hello, {name}"


@task
async def think(number):
    return number + 1


@task
def fail(text):
    if TEXT is not None:
        raise ValueError(TEXT or text)


@task
def give():
    return GIVEN


@task
def raises():
    raise ERROR


@task(takes_context=True)
def attempts(context):
    if context.attempt < 3:
        raise ValueError("not yet")
    return context.attempt


@task
def not_for_json():
    return object()


@task
def leave():
    raise SystemExit("bye")


@task
def slow(seconds):
    (FOLDER / "begun").touch()
    time.sleep(seconds)
    return os.getpid()


@task
def forget():
    return connection.in_atomic_block
