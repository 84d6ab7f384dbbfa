"""The pages. An order and its message are written in one transaction, or not at all."""

from __future__ import annotations

import json
import uuid

from django.db import IntegrityError, transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_safe

from gnsqsync.django import outbox
from orders.forms import OrderForm
from orders.models import Order, Product, SentMail


@require_safe
def products(request: HttpRequest) -> HttpResponse:
    return render(request, "orders/products.html", {"products": Product.objects.all()})


@require_http_methods(["GET", "HEAD", "POST"])
def product(request: HttpRequest, slug: str) -> HttpResponse:
    found = get_object_or_404(Product, slug=slug)
    if request.method == "POST":
        form = OrderForm(request.POST)
        if form.is_valid():
            return redirect(place_order(found, form))
        status = 422
    else:
        form = OrderForm(initial={"number": uuid.uuid4()})
        status = 200
    return render(request, "orders/product.html", {"product": found, "form": form}, status=status)


def place_order(product: Product, form: OrderForm) -> Order:
    order = form.save(commit=False)
    order.product = product
    order.number = form.cleaned_data["number"]
    try:
        with transaction.atomic():
            order.save(force_insert=True)
            outbox.publish("orders", json.dumps({"order": str(order.number)}))
    except IntegrityError:
        # The form was sent twice. What was ordered the first time counts.
        return Order.objects.get(number=order.number)
    return order


@require_safe
@never_cache
def order(request: HttpRequest, number: uuid.UUID) -> HttpResponse:
    found = get_object_or_404(Order.objects.select_related("product"), number=number)
    return render(request, "orders/order.html", {"order": found})


@require_safe
@never_cache
def mails(request: HttpRequest) -> HttpResponse:
    return render(request, "orders/mails.html", {"mails": SentMail.objects.all()[:50]})
