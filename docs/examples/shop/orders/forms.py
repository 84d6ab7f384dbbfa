from __future__ import annotations

from django import forms

from orders.models import Order


class OrderForm(forms.ModelForm):
    number = forms.UUIDField(widget=forms.HiddenInput)

    class Meta:
        model = Order
        fields = ("quantity", "name", "email")
        widgets = {
            "quantity": forms.NumberInput(attrs={"inputmode": "numeric"}),
            "name": forms.TextInput(attrs={"autocomplete": "name"}),
            "email": forms.EmailInput(attrs={"autocomplete": "email"}),
        }
        error_messages = {
            "quantity": {
                "required": "Say how many you want.",
                "min_value": "Order at least one.",
                "max_value": "Order 20 at most.",
            },
            "name": {"required": "Say who you are."},
            "email": {
                "required": "Say where the confirmation is to go.",
                "invalid": "Give a whole address, such as ann@mail.example.",
            },
        }

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, label_suffix="", **kwargs)
        # A screen reader says what is wrong with a field when it comes there.
        for name in self.errors:
            if name in self.fields:
                self.fields[name].widget.attrs |= {
                    "aria-invalid": "true",
                    "aria-describedby": f"{self[name].id_for_label}_error",
                }
