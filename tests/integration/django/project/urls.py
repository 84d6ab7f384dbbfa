from django.contrib import admin
from django.http import HttpResponse
from django.urls import path

from gnsqsync.django import publish


def publishes(request):
    publish("orders", "from a view")
    return HttpResponse("published")


urlpatterns = [path("admin/", admin.site.urls), path("publish/", publishes)]
