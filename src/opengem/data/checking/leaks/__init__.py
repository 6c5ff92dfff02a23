"""Columns that are known only after the example: found by use, by name, and by measuring them against the labels."""
