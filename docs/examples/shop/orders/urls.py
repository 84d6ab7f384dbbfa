from __future__ import annotations

from django.urls import path

from orders import views

urlpatterns = [
    path("", views.products, name="products"),
    path("products/<slug:slug>/", views.product, name="product"),
    path("orders/<uuid:number>/", views.order, name="order"),
    path("mails/", views.mails, name="mails"),
]
