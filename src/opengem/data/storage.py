"""What a data set saves on disk."""


def times_smaller(storage: dict[str, float]) -> float:
    """Return how many times larger examples and histories would be with each history copied into its examples.

    Formula: (copied + rows) / (store + rows); the rows of examples and requests are needed either way.

    Args:
        storage: `storage` of a manifest.
    """
    rows = storage["bytes_rows"]
    return (storage["bytes_copied_estimate"] + rows) / max(storage["bytes_store"] + rows, 1)
