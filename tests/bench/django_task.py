"""A task for ``python -m tests.bench.django_tables tasks``; on Django 6."""

from __future__ import annotations

from django.tasks import task


@task
def nothing(number: int) -> int:
    return number
