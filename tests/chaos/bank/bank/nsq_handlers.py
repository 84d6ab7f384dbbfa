"""What becomes of the messages; each is one transaction."""

from django.conf import settings
from django.db.models import F

from bank.models import Account, Credit, Receipt
from bank.sending import send
from gnsqsync.django import nsq_handler

OPTIONS = {
    "once": settings.WITHOUT != "inbox",
    "per_message_transaction": True,
    "headers": True,
    "concurrency": 2,
    "max_in_flight": 30,
    "max_attempts": 0,
    "requeue_delay": 0.2,
    "max_backoff_duration": 0.5,
    "msg_timeout": 10.0,
}


@nsq_handler("transfers", "giving", **OPTIONS)
def give(message):
    found = message.json()
    account = Account.objects.filter(pk=found["target"])
    account.update(balance=F("balance") + found["amount"])
    key = message.headers["key"]
    Credit.objects.create(number=found["number"], amount=found["amount"], key=key)
    send("receipts", {"number": found["number"]})


@nsq_handler("receipts", "confirming", **OPTIONS)
def confirm(message):
    Receipt.objects.create(number=message.json()["number"], key=message.headers["key"])
