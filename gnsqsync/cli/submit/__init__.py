"""The folder of the script for spark-submit. It has no other module: Python puts it on
``sys.path``."""
