"""The ads that a package knows: what each ad's key stands for, already encoded."""

from pathlib import Path

import numpy as np

from opengem.data.arrow_file import ArrowFile, Column


class AdsTable:
    """The data set's table of ads. Row 0 is the ad that is not known: all its features are missing.

    Args:
        path: `ads.arrow`.
    """

    def __init__(self, path: Path):
        self._file = ArrowFile(path)
        keys = self._file.column("ad_key").values
        self._row_of = {key: row for row, key in enumerate(keys.tolist()) if key is not None}

    def __len__(self) -> int:
        """Number of known ads."""
        return len(self._row_of)

    def rows(self, keys: list[str | None]) -> np.ndarray:
        """Return the rows of ads by canonical key, `(n,)` int64; 0 where not known."""
        return np.fromiter((self._row_of.get(key, 0) for key in keys), np.int64, len(keys))  # type: ignore[arg-type]

    def feature(self, name: str) -> Column | None:
        """Return the encoded feature, or None where it does not stand in the ads table."""
        return self._column(f"f_{name}")

    def attribute(self, stream: str, name: str) -> Column | None:
        """Return what an event's attribute is for each ad as item, or None where the event itself carries it."""
        return self._column(f"a_{stream}.{name}")

    def _column(self, name: str) -> Column | None:
        return self._file.column(name) if name in self._file.names else None
