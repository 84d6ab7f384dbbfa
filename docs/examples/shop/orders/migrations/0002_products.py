"""What the shop sells."""

from __future__ import annotations

from django.db import migrations

PRODUCTS = [
    ("assam", "Assam tea", "Second flush, malty and strong. A tin of 250 g.", "8.90"),
    ("sencha", "Sencha", "Green tea of the first harvest, steamed. A bag of 100 g.", "11.50"),
    ("teapot", "Teapot", "Stoneware with a strainer, for one litre.", "34.00"),
    ("cup", "Cup", "Stoneware, glazed inside, a quarter of a litre.", "9.80"),
]


def add_products(apps, schema_editor):
    Product = apps.get_model("orders", "Product")
    Product.objects.bulk_create(
        Product(slug=slug, name=name, description=description, price=price)
        for slug, name, description, price in PRODUCTS
    )


def remove_products(apps, schema_editor):
    slugs = [slug for slug, *_ in PRODUCTS]
    apps.get_model("orders", "Product").objects.filter(slug__in=slugs).delete()


class Migration(migrations.Migration):
    dependencies = [("orders", "0001_initial")]
    operations = [migrations.RunPython(add_products, remove_products)]
