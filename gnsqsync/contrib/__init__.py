"""Middlewares for services that others run. Each module needs an extra of its name."""
