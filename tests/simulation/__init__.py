"""A whole cluster in one process, on one seed: the same seed gives the same history to the byte.

``python -m tests.simulation --help``. ``docs/design/simulation.rst`` says how it works.
"""
