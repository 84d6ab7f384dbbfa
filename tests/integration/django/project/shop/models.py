from django.db import models


class Order(models.Model):
    number = models.IntegerField(unique=True)
    worker = models.CharField(max_length=100, default="")
