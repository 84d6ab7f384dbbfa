#!/usr/bin/env python
"""Django's own, but for the gevent of some tests."""

import os
import sys

if os.environ.get("SHOP_GEVENT"):
    import gevent.monkey

    gevent.monkey.patch_all()

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "settings")
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)
