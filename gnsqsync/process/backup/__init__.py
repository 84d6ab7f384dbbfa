"""The files of a backup, and the Readers that fill them, for ``gnsqsync to-file``.

``names``, ``disk``, ``leftovers`` and ``files`` know no NSQ and start no thread.
"""
