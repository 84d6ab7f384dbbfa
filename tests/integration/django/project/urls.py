from django.contrib import admin
from django.http import HttpResponse
from django.urls import path
from shop.models import Order

from gnsqsync.django import publish


def publishes(request):
    publish("orders", "from a view")
    return HttpResponse("published")


def count_orders(request):
    return HttpResponse(Order.objects.count())


urlpatterns = [
    path("admin/", admin.site.urls),
    path("publish/", publishes),
    path("orders/", count_orders),
]
