"""Django projects that use gnsqsync.django, run as their users run them."""
