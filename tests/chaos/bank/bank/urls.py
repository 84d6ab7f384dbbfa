"""POST /transfer: takes money from one account, and has it given to the other one."""

from datetime import timedelta

from django.db import transaction
from django.db.models import F
from django.http import HttpResponse
from django.urls import path
from django.utils import timezone
from django.views.decorators.csrf import csrf_exempt

from bank.models import Account, Transfer
from bank.sending import send


@csrf_exempt
def transfer(request):
    given = request.POST
    number, amount, after = given["number"], int(given["amount"]), float(given["after"])
    with transaction.atomic():
        source = Account.objects.filter(pk=given["source"], balance__gte=amount)
        if not source.update(balance=F("balance") - amount):
            return HttpResponse("not enough", status=409)
        due = timezone.now() + timedelta(seconds=after)
        Transfer.objects.create(number=number, amount=amount, due=due, scheduled=after > 0)
        body = {"number": number, "target": given["target"], "amount": amount}
        send("transfers", body, after or None)
    return HttpResponse("done")


urlpatterns = [path("transfer", transfer)]
