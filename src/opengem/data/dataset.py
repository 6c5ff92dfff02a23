"""A data set on disk, and the reading of batches from it."""

import dataclasses
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from opengem.config import changes
from opengem.data.arrow_file import ArrowFile, Column, rows_of_slices
from opengem.data.code_rows import CodeRows
from opengem.data.dictionary import DAY_MS, Dictionary
from opengem.data.encoder import Encoder
from opengem.data.manifest import open_manifest
from opengem.data.matured_labels import MaturedLabels
from opengem.data.segments import Segments
from opengem.errors import ConfigError, DataError, nearest
from opengem.jagged import Batch, History, JaggedTensor
from opengem.schema.inputs import FeatureInput, InputSpec, StreamInput, TableInput
from opengem.schema.words import Vocabulary as VocabularyWords


class Dataset:
    """A folder that `ingest` wrote, memory-mapped.

    Each event is stored once; a request holds `(bucket, start, end)` of its history in each stream, so that
    reading a batch is a gather of slices. Opened with `Dataset.open`. It can be sent to other processes: they
    open the folder themselves.

    Columns of ids are stored as codes of the `Dictionary` and read as rows of a vocabulary: that of the training
    window, or another by `read_as` and `grown`.

    Attributes:
        folder: The folder.
        manifest: What ingest counted, as plain dictionaries.
        inputs: What a model must know of the features, streams and tasks.

    Args:
        folder: The folder.
        manifest: Its manifest.
        inputs: What a model must know.
        rows: The row of each code; those of the training window if not given.
    """

    def __init__(
        self,
        folder: Path,
        manifest: dict,
        inputs: InputSpec,
        rows: CodeRows | None = None,
    ):
        self.folder = folder
        self.manifest = manifest
        self.inputs = inputs
        self._segments = Segments(folder, manifest)
        self._requests = self._segments.requests
        self._examples = self._segments.file("examples.arrow")
        self._users = self._segments.file("users.arrow")
        self._ads = self._segments.file("ads.arrow")
        self._encoder: Encoder | None = None
        self._rows = rows or CodeRows.of_window(manifest, inputs)
        self._places = {f.name: self._place(f) for f in inputs.features}
        self._labels = {
            t.name: MaturedLabels(self._examples.column(f"y_{t.name}"), self._segments, t.name)
            for t in inputs.tasks
        }

    @classmethod
    def open(cls, folder: str | Path, *, verify: bool = False) -> "Dataset":
        """Open the data set in `folder`.

        Args:
            folder: The folder.
            verify: Read all files once and compare their checksums with those of the manifest (about a second a
                gigabyte); without it only their sizes are compared.

        Raises:
            DataError: The folder holds no finished data set, another format, or files that do not fit.
        """
        folder = Path(folder)
        manifest, inputs = open_manifest(folder, verify=verify)
        return cls(folder, manifest, inputs)

    def __reduce__(self):
        return (Dataset, (self.folder, self.manifest, self.inputs, self._rows))

    @property
    def encoder(self) -> Encoder:
        """What the rows of ids and the numbers mean that are read."""
        return self._encoder or self._window

    @cached_property
    def _window(self) -> Encoder:
        return Encoder.load(self.folder)

    @cached_property
    def _dictionaries(self) -> dict[str, Dictionary]:
        vocabularies = self._window.vocabularies
        return {name: Dictionary(self._segments, name, vocabularies[name]) for name in self.manifest["codes"]}

    def read_as(self, encoder: Encoder) -> "Dataset":
        """Return the data set read with the vocabularies of an encoder, such as that of a model.

        Ids are found by what they are, whatever their rows here; those that the encoder does not hold read as unseen.
        """
        tables = tuple(
            TableInput(name=t.name, rows=encoder.table_rows(t.name)) if t.name in encoder.vocabularies else t
            for t in self.inputs.tables
        )
        inputs = dataclasses.replace(self.inputs, tables=tables)
        dataset = Dataset(self.folder, self.manifest, inputs, self._rows.of(self._dictionaries, encoder))
        dataset._encoder = encoder
        return dataset

    def for_model(self, owner: Path, inputs: InputSpec, encoder: Encoder) -> "Dataset":
        """Return the data set as a model reads it, whether it was trained on this one, a shorter or a longer one.

        Args:
            owner: The run or package that holds the model, for messages.
            inputs: What the model was built for.
            encoder: What it reads ids and numbers with.

        Raises:
            ConfigError: The model would read features or numbers otherwise than in training; says what differs.
        """
        dataset = self.read_as(encoder)
        found = [*changes(inputs.layout(), dataset.inputs.layout()), *encoder.differences(self._window)]
        if found:
            raise ConfigError(
                f"{self.folder} must have the inputs that {owner} was made for. Received: schema "
                f"{self.schema_fingerprint[:12]}, made for {inputs.fingerprint[:12]}; " + "; ".join(found)
            )
        return dataset

    def grown(self, splits: Iterable[str]) -> "Dataset":
        """Return the data set read with the vocabularies that were known at the end of some splits.

        Up to the training window's end they are those of the training window. Beyond it, ids are admitted that were
        seen often enough on the days before the first example that follows, or on all days if none does: nothing is
        known of what comes after the splits. See `Dictionary.vocabulary`.

        Raises:
            ConfigError: There is no such split.
        """
        stop = max((self.split(name).stop for name in splits), default=0)
        if stop <= self.split("train").stop:
            return self
        until = None
        if stop < self.num_examples:
            until = int(self._examples.column("time").gather(np.arange(stop, stop + 1))[0]) // DAY_MS
        rules = self.manifest["admission"]
        vocabularies = {
            name: dictionary.vocabulary(VocabularyWords(**rules[name]), until)
            for name, dictionary in self._dictionaries.items()
        }
        return self.read_as(self._window.with_vocabularies(vocabularies))

    def ads(self) -> pa.Table:
        """Return the table of ads: `ad_key`, features and what events take over, ids as rows."""
        return self._rows.read_ads(self._ads, self.inputs)

    @property
    def schema_fingerprint(self) -> str:
        """Fingerprint of the schema that the data set was made with."""
        return self.inputs.fingerprint

    @property
    def num_examples(self) -> int:
        """Number of examples."""
        return self._examples.num_rows

    @property
    def num_requests(self) -> int:
        """Number of requests."""
        return self._requests.num_rows

    @property
    def example_ids(self) -> np.ndarray:
        """Ids of the examples, `(num_examples,)` int64, in row order."""
        return self.column("example_id")

    def column(self, name: str) -> np.ndarray:
        """Return a column of the examples, one value a row; without a copy where the file is in one piece.

        Raises:
            DataError: There is no such column.
        """
        if name.startswith("y_") and name[2:] in self._labels:
            return self._labels[name[2:]].values
        return self._examples.column(name).values

    def split(self, name: str) -> range:
        """Return the example rows of the split `name`.

        Raises:
            ConfigError: There is no such split.
        """
        splits = self.manifest["splits"]
        if name not in splits:
            raise ConfigError(
                f'split must be one of {sorted(splits)}{nearest(name, splits)}. Received: "{name}".'
            )
        return range(*splits[name])

    def first_examples(self, requests: np.ndarray) -> np.ndarray:
        """Return the first example row of each request; for request `num_requests`, the row past the end."""
        inside = np.minimum(requests, self.num_requests - 1)
        rows = self._requests.column("first_example").gather(inside)
        return np.where(requests < self.num_requests, rows, self.num_examples)

    def requests_of_split(self, name: str) -> range:
        """Return the requests of the split `name`.

        Raises:
            DataError: A boundary of the split cuts a request in two.
        """
        rows = self.split(name)
        if not len(rows):
            return range(0)
        request = self._examples.column("request")
        first, last = request.gather(np.array([rows.start, rows.stop - 1])).tolist()
        bounds = self.first_examples(np.array([first, last + 1])).tolist()
        if bounds != [rows.start, rows.stop]:
            raise DataError(
                f'split "{name}" must begin and end between requests. Received: example rows {rows.start} to '
                f"{rows.stop}, whose requests span rows {bounds[0]} to {bounds[1]}. Run ingest again."
            )
        return range(first, last + 1)

    def read(
        self,
        requests: np.ndarray,
        history: int | Mapping[str, int],
        extras: Mapping[str, np.ndarray] | None = None,
    ) -> Batch:
        """Read whole requests, in the order given, with all their examples.

        Args:
            requests: Request numbers, shape `(R,)`, each in `[0, num_requests)`.
            history: Longest history in events; longer ones keep the newest events. One number for all
                streams, or one for each by name.
            extras: Name -> one value for each example row of the data set, shape `(num_examples, ...)`.

        Returns:
            The batch of the B examples of the R requests.

        Raises:
            ConfigError: `history` or `extras` do not fit the data set.
        """
        requests = np.asarray(requests, dtype=np.int64)
        if len(requests) and not (requests.min() >= 0 and requests.max() < self.num_requests):
            raise ConfigError(
                f"requests must lie in [0, {self.num_requests}). "
                f"Received: {requests.min()} to {requests.max()}."
            )
        first = self.first_examples(requests)
        sizes = self.first_examples(requests + 1) - first
        rows = rows_of_slices(first, sizes)
        request_of_example = np.repeat(np.arange(len(requests)), sizes)
        at = {
            "examples": rows,
            "requests": requests,
            "users": self._requests.column("user_row").gather(requests),
            "ads": self._examples.column("ad_row").gather(rows),
        }
        features = self._read_features(at)
        labels = {t.name: self._labels[t.name].gather(rows) for t in self.inputs.tasks}
        longest = self.history_limits(history)
        return Batch(
            **features,
            history={s.name: self._read_history(s, requests, longest[s.name]) for s in self.inputs.streams},
            request_of_example=torch.from_numpy(request_of_example),
            request_time=_int64(self._requests.column("time").gather(requests)),
            surface=_int64(self._examples.column("surface").gather(rows)),
            time=_int64(self._examples.column("time").gather(rows)),
            example_id=_int64(self._examples.column("example_id").gather(rows)),
            labels={name: _number(y) for name, y in labels.items()},
            label_mask={
                name: torch.from_numpy((~np.isnan(y)).astype(np.float32)) for name, y in labels.items()
            },
            weight=torch.ones(len(rows)),
            extras={
                name: torch.from_numpy(values[rows]) for name, values in self.check_extras(extras).items()
            },
        )

    def history_limits(self, history: int | Mapping[str, int]) -> dict[str, int]:
        """Return the longest history of each stream.

        Raises:
            ConfigError: A length is negative, or a stream is unknown or left out.
        """
        names = [s.name for s in self.inputs.streams]
        limits = dict(history) if isinstance(history, Mapping) else dict.fromkeys(names, history)
        for name in limits:
            if name not in names:
                raise ConfigError(
                    f'history: "{name}" is not a stream{nearest(name, names)}. Streams: {names}.'
                )
        for name in names:
            if name not in limits:
                raise ConfigError(
                    f'history must name every stream; "{name}" is left out. Give 0 to read none of it.'
                )
            if limits[name] < 0:
                raise ConfigError(f'history of "{name}" must be 0 or more. Received: {limits[name]}.')
        return limits

    def check_extras(self, extras: Mapping[str, np.ndarray] | None) -> Mapping[str, np.ndarray]:
        """Return `extras` after a check that each has one value for each example.

        Raises:
            ConfigError: One has another length.
        """
        for name, values in (extras or {}).items():
            if len(values) != self.num_examples:
                raise ConfigError(
                    f'extras["{name}"] must hold one value for each of the {self.num_examples} examples. '
                    f"Received: {len(values)}."
                )
        return extras or {}

    def _read_features(self, at: dict[str, np.ndarray]) -> dict[str, dict]:
        """Read every feature at the rows `at` its place."""
        parts: dict[str, dict] = {"ids": {}, "bags": {}, "numbers": {}, "missing": {}, "vectors": {}}
        for feature in self.inputs.features:
            place, column = self._places[feature.name]
            rows = at[place]
            if feature.kind == "ids":
                values, lengths = column.gather_lists(rows)
                parts["bags"][feature.name] = JaggedTensor.from_lengths(
                    _int64(self._rows.read(feature.table, values)), torch.from_numpy(lengths)
                )
            elif feature.kind == "id":
                parts["ids"][feature.name] = _int64(self._rows.read(feature.table, column.gather(rows)))
            elif feature.kind == "number":
                values = column.gather(rows)
                parts["numbers"][feature.name] = _number(values)
                parts["missing"][feature.name] = torch.from_numpy(np.isnan(values).astype(np.float32))
            else:
                parts["vectors"][feature.name] = _number(column.gather(rows))
        return parts

    def _read_history(self, stream: StreamInput, requests: np.ndarray, longest: int) -> History:
        """Read the newest `longest` events before each request, grouped by segment and bucket file."""
        pieces = list(self._segments.newest(stream.name, requests, longest))
        lengths = np.zeros(len(requests), np.int64)
        for _, start, end in pieces:
            lengths += end - start
        lasts = np.cumsum(lengths)
        total = int(lasts[-1]) if len(lasts) else 0
        times = np.empty(total, dtype=np.int64)
        ids = {a.name: np.empty(total, dtype=np.int64) for a in stream.attributes if a.kind == "id"}
        numbers = {a.name: np.empty(total, dtype=np.float32) for a in stream.attributes if a.kind == "number"}
        out = {"time": times} | {f"a_{name}": values for name, values in (ids | numbers).items()}
        users = self._requests.column("user").gather(requests)
        after = lasts.copy()  # where the events of newer segments begin
        for segment, start, end in pieces:
            here = end - start
            after -= here
            bucket = users % self._segments.all[segment].buckets
            for number in np.unique(bucket[here > 0]):
                inside = np.flatnonzero((bucket == number) & (here > 0))
                file = self._segments.events(segment, stream.name, int(number))
                file.copy_slices(start[inside], here[inside], out, after[inside])
        tables = {a.name: a.table for a in stream.attributes}
        return History(
            ids={
                name: torch.from_numpy(self._rows.read(tables[name], values)) for name, values in ids.items()
            },
            numbers={name: _number(values) for name, values in numbers.items()},
            times=torch.from_numpy(times),
            offsets=torch.from_numpy(np.concatenate([np.zeros(1, np.int64), lasts])),
        )

    def _place(self, feature: FeatureInput) -> tuple[str, Column]:
        """Return where a feature is stored and its column; a user's or ad's own table comes second."""
        column = f"f_{feature.name}"
        files = {"user": "requests", "ad": "examples", "context": "examples"}
        own = {"user": "users", "ad": "ads"}
        place = files[feature.owner]
        if feature.owner in own and column not in self._file(place).names:
            place = own[feature.owner]
        return place, self._file(place).column(column)

    def _file(self, place: str) -> ArrowFile:
        return {
            "examples": self._examples,
            "requests": self._requests,
            "users": self._users,
            "ads": self._ads,
        }[place]


def _int64(values: np.ndarray) -> Tensor:
    return torch.from_numpy(values.astype(np.int64, copy=False))


def _number(values: np.ndarray) -> Tensor:
    """Return float32 with 0 for NaN."""
    return torch.from_numpy(
        np.nan_to_num(values.astype(np.float32, copy=False), nan=0.0, posinf=None, neginf=None)
    )
