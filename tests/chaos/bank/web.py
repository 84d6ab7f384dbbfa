"""The bank's web server: ``python web.py PORT``."""

import os
import sys

os.environ["DJANGO_SETTINGS_MODULE"] = "settings"

from django.core.servers.basehttp import run
from django.core.wsgi import get_wsgi_application

run("127.0.0.1", int(sys.argv[1]), get_wsgi_application(), threading=True)
