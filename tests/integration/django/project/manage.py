#!/usr/bin/env python
"""Django's own, but for the gevent of some tests."""

import os
import sys

if os.environ.get("SHOP_GEVENT"):
    import gevent.monkey

    gevent.monkey.patch_all()


def kill_at(word):
    """``before 7``: die by SIGKILL before the seventh MPUB; ``after 7``: when nsqd has it."""
    import signal

    from gnsqsync import Writer

    moment, number = word.split()
    publish_many, count = Writer._publish_many, 0

    def dies(*arguments, **options):
        nonlocal count
        count += 1
        if moment == "after" or count < int(number):
            publish_many(*arguments, **options)
        if count == int(number):
            os.kill(os.getpid(), signal.SIGKILL)

    Writer._publish_many = dies


if os.environ.get("SHOP_KILL"):
    kill_at(os.environ["SHOP_KILL"])

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "settings")
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)
