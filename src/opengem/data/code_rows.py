"""Stored codes of ids, read as rows of vocabularies."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from opengem.data.arrow_file import ArrowFile
from opengem.data.dictionary import Dictionary
from opengem.data.encoder import Encoder
from opengem.schema.inputs import UNSEEN_ROW, InputSpec


class CodeRows:
    """The row of each code in the vocabularies that a data set is read with.

    Args:
        rows: Embedding table -> `(codes,)` int64, or None where each code is its row.
    """

    def __init__(self, rows: Mapping[str, np.ndarray | None]) -> None:
        self._rows = dict(rows)

    @classmethod
    def of_window(cls, manifest: dict[str, Any], inputs: InputSpec) -> "CodeRows":
        """Return the rows in the vocabularies of the training window, whose ids have the first codes."""
        found: dict[str, np.ndarray | None] = {}
        for table in inputs.tables:
            codes = manifest["codes"].get(table.name, table.rows)
            rows = np.arange(codes)
            rows[table.rows :] = UNSEEN_ROW
            found[table.name] = rows if codes > table.rows else None
        return cls(found)

    def of(self, dictionaries: Mapping[str, Dictionary], encoder: Encoder) -> "CodeRows":
        """Return the rows in an encoder's vocabularies; tables that it lacks stay as they are."""
        found = dict(self._rows)
        for name, dictionary in dictionaries.items():
            if name in encoder.vocabularies:
                rows = dictionary.rows(encoder.vocabularies[name])
                found[name] = None if np.array_equal(rows, np.arange(len(rows))) else rows
        return CodeRows(found)

    def read(self, table: str, codes: np.ndarray) -> np.ndarray:
        """Return the rows of codes."""
        rows = self._rows[table]
        return codes if rows is None else rows[codes]

    def read_ads(self, ads: ArrowFile, inputs: InputSpec) -> pa.Table:
        """Return the table of ads with rows for codes: `ad_key`, its features, and what events take over from it."""
        table = ads.table(ads.names)
        table_of = {f"f_{f.name}": f.table for f in inputs.features if f.kind in ("id", "ids")}
        for stream in inputs.streams:
            table_of |= {f"a_{stream.name}.{a.name}": a.table for a in stream.attributes if a.kind == "id"}
        every = np.arange(table.num_rows)
        for place, name in enumerate(table.column_names):
            if name not in table_of or self._rows[table_of[name]] is None:
                continue
            column = ads.column(name)
            if column.is_list:
                codes, lengths = column.gather_lists(every)
                offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
                rows = pa.array(self.read(table_of[name], codes), pa.int32())
                missing = table.column(name).combine_chunks().is_null()
                found = pa.ListArray.from_arrays(offsets, rows, mask=missing)
            else:
                found = pa.array(self.read(table_of[name], column.gather(every)), pa.int32())
            table = table.set_column(place, table.schema.field(place), found)
        return table
