"""The jobs on Spark as functions."""

from __future__ import annotations
