"""From teacher to students: label stores, transfer methods, the transfer ratio."""
