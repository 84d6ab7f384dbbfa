"""Questions to all nsqds and nsqlookupds of a cluster, side by side, and a judgement of it.

``asking`` makes the calls, ``servers`` knows the clients, ``totals`` adds up. ``looking`` collects
a snapshot (``sight``), and ``diagnosis`` tells from it why messages wait.
"""
