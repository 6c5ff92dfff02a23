"""The reading side of ingest: files, columns, typed batches, quarantine."""
