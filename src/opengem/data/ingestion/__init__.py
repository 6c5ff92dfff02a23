"""Ingest: logs in, a data set out. `run.py` is the trip from end to end."""
