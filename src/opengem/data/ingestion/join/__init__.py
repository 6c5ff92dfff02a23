"""The joining side of ingest, in SQL: rows, examples, labels, events, statistics."""
