"""Products, orders, and the mails that the shop has sent."""

from __future__ import annotations

import uuid

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.urls import reverse


class Product(models.Model):
    slug = models.SlugField(unique=True)
    name = models.CharField(max_length=100)
    description = models.TextField()
    price = models.DecimalField(max_digits=8, decimal_places=2)

    class Meta:
        ordering = ("name",)

    def __str__(self) -> str:
        return self.name

    def get_absolute_url(self) -> str:
        return reverse("product", args=[self.slug])


class Order(models.Model):
    class State(models.TextChoices):
        WAITING = "waiting"
        CONFIRMED = "confirmed"

    # Made with the form, so that the same form sent twice is the same order.
    number = models.UUIDField(unique=True, default=uuid.uuid4, editable=False)
    product = models.ForeignKey(Product, on_delete=models.PROTECT)
    quantity = models.PositiveSmallIntegerField(
        default=1, validators=[MinValueValidator(1), MaxValueValidator(20)]
    )
    name = models.CharField("your name", max_length=100)
    email = models.EmailField("e-mail address")
    state = models.CharField(max_length=10, choices=State.choices, default=State.WAITING)
    created_at = models.DateTimeField(auto_now_add=True)
    confirmed_at = models.DateTimeField(null=True, editable=False)

    def __str__(self) -> str:
        return f"{self.quantity} × {self.product}"

    def get_absolute_url(self) -> str:
        return reverse("order", args=[self.number])

    @property
    def is_waiting(self) -> bool:
        return self.state == self.State.WAITING

    @property
    def total(self) -> object:
        return self.product.price * self.quantity


class SentMail(models.Model):
    """What ``mail.DatabaseBackend`` has sent."""

    message_id = models.CharField(max_length=200, unique=True)
    recipient = models.CharField(max_length=254)
    subject = models.CharField(max_length=200)
    body = models.TextField()
    sent_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("-pk",)

    def __str__(self) -> str:
        return f"{self.subject} to {self.recipient}"
