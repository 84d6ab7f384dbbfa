"""The folder of the script for spark-submit, alone: Python puts the folder on ``sys.path``."""
