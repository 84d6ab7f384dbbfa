"""Accounts, and what was done. No constraint of the database keeps an effect from being doubled."""

from django.db import models
from django.utils import timezone


class Account(models.Model):
    balance = models.BigIntegerField()


class Transfer(models.Model):
    """Money was taken. ``due``: it is not to be given before."""

    number = models.CharField(max_length=50, unique=True)
    amount = models.BigIntegerField()
    due = models.DateTimeField()
    scheduled = models.BooleanField()


class Credit(models.Model):
    """Money was given."""

    number = models.CharField(max_length=50, db_index=True)
    amount = models.BigIntegerField()
    key = models.CharField(max_length=200)
    at = models.DateTimeField(default=timezone.now)


class Receipt(models.Model):
    """It was confirmed."""

    number = models.CharField(max_length=50, db_index=True)
    key = models.CharField(max_length=200)
