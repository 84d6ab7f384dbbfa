"""The files of a back-up, and the Readers that fill them: what ``gnsqsync to-file`` does.

``names``, ``disk``, ``leftovers`` and ``files`` know no NSQ and make no thread.
"""
