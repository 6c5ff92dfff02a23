"""Batches in a declared order that can be stopped and resumed at the exact row."""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np
import torch
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from opengem.data.dataset import Dataset
from opengem.data.packing import Packed, pack, unpack
from opengem.errors import ConfigError
from opengem.jagged import Batch

Order = Literal["time", "shuffled"]


def batch_plan(
    sizes: np.ndarray, batch_size: int, order: Order, window: int | None, seed: int, epoch: int
) -> tuple[np.ndarray, np.ndarray]:
    """Decide which requests make up which batch; a pure function of its arguments.

    Requests are put in order, then cut: a batch takes requests until it holds `batch_size` examples or more.
    The last batch may be smaller.

    Args:
        sizes: Examples of each request in time order, shape `(R,)`, each 1 or more.
        batch_size: Least number of examples of a batch, 1 or more.
        order: `time` keeps the order of the log; `shuffled` permutes requests.
        window: Shuffle only among this many consecutive requests; None for all of them.
        seed: Seed of the shuffle.
        epoch: The epoch; each has its own permutation.

    Returns:
        The permuted positions in `sizes`, shape `(R,)`, and the cuts, shape `(batches + 1,)`: batch i holds
        `positions[cuts[i]:cuts[i + 1]]`.
    """
    count = len(sizes)
    positions = np.arange(count)
    if order == "shuffled":
        random = np.random.default_rng((seed, epoch))
        if window is None:
            positions = random.permutation(count)
        else:
            positions = np.lexsort((random.random(count), positions // window))
    ends = np.cumsum(sizes[positions], dtype=np.int64)
    cuts = [0]
    while cuts[-1] < count:
        before = ends[cuts[-1] - 1] if cuts[-1] else 0
        cuts.append(min(int(np.searchsorted(ends, before + batch_size)) + 1, count))
    return positions, np.array(cuts, dtype=np.int64)


class Loader:
    """Yields the batches of one epoch from the current position.

    Requests are never divided. The batches and their order depend on the arguments, the seed and the epoch,
    not on `workers`. A pass over a finished epoch begins the same epoch again; `set_epoch` gives another.

    Args:
        dataset: The data set.
        split: Name of a split, or several that are read one after another.
        batch_size: Examples; a batch is cut when it holds this many or more.
        history: Longest history in events, for all streams or by stream.
        order: `time`, or `shuffled` requests.
        window: Requests among which to shuffle; None for the whole split.
        seed: Seed of the shuffle, 0 or more.
        workers: Processes that read ahead; 0 reads in this process.
        extras: Name -> one value for each example row of the data set; goes into `Batch.extras`.

    Raises:
        ConfigError: An argument is out of its range or does not fit the data set.
    """

    def __init__(
        self,
        dataset: Dataset,
        split: str | tuple[str, ...],
        *,
        batch_size: int,
        history: int | Mapping[str, int],
        order: Order = "time",
        window: int | None = None,
        seed: int = 0,
        workers: int = 0,
        extras: Mapping[str, np.ndarray] | None = None,
    ):
        if order not in ("time", "shuffled"):
            raise ConfigError(f'order must be "time" or "shuffled". Received: "{order}".')
        least = {
            "batch_size": (batch_size, 1),
            "window": (window, 1),
            "seed": (seed, 0),
            "workers": (workers, 0),
        }
        for name, (value, smallest) in least.items():
            if value is not None and value < smallest:
                raise ConfigError(f"{name} must be {smallest} or more. Received: {value}.")
        names = (split,) if isinstance(split, str) else tuple(split)
        self.dataset = dataset
        self._history = dataset.history_limits(history)
        self._extras = dataset.check_extras(extras)
        ranges = [np.arange(r.start, r.stop) for r in map(dataset.requests_of_split, names)]
        self._requests = np.concatenate([np.empty(0, dtype=np.int64), *ranges])
        self._batch_size, self._window = batch_size, window
        self._order: Order = order
        self._seed, self._workers = seed, workers
        self.set_epoch(0)

    def __len__(self) -> int:
        """Number of batches of the whole epoch."""
        return len(self._cuts) - 1

    @property
    def num_examples(self) -> int:
        """Number of examples of one epoch."""
        return int(self._sizes().sum())

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of `epoch`, which is 0 or more."""
        self._epoch, self._position, self._finished = epoch, 0, False
        positions, self._cuts = batch_plan(
            self._sizes(), self._batch_size, self._order, self._window, self._seed, epoch
        )
        self._plan = self._requests[positions]

    def state(self) -> dict[str, int]:
        """Return where to resume: the epoch, the next batch that was not yielded yet, and the seed."""
        return {"epoch": self._epoch, "position": self._position, "seed": self._seed}

    def load_state(self, state: Mapping[str, int]) -> None:
        """Resume at `state`.

        Raises:
            ConfigError: The state is of another seed, or lies past the end of the epoch.
        """
        if state["seed"] != self._seed:
            raise ConfigError(
                f"seed must be that of the saved state, {state['seed']}, to resume at the same row. "
                f"Received: {self._seed}."
            )
        self.set_epoch(state["epoch"])
        if not 0 <= state["position"] <= len(self):
            raise ConfigError(
                f"the saved position must lie in [0, {len(self)}]. Received: {state['position']}. Resume "
                "with the data set, split and batch_size of the saved run."
            )
        self._position = state["position"]

    def __iter__(self) -> Iterator[Batch]:
        if self._finished:
            self._position, self._finished = 0, False
        for batch in self._batches(range(self._position, len(self))):
            self._position += 1
            yield batch
        self._finished = True

    def _batches(self, numbers: range) -> Iterator[Batch]:
        reader = _BatchReader(self.dataset, self._plan, self._cuts, self._history, self._extras)
        if self._workers == 0 or not numbers:
            yield from (reader.read(i) for i in numbers)
            return
        loader = DataLoader(
            reader,
            batch_size=None,
            sampler=numbers,
            num_workers=self._workers,
            collate_fn=_as_it_is,
            generator=torch.Generator().manual_seed(self._seed),  # leaves the global random state alone
        )
        for packed in loader:
            yield unpack(packed)

    def _sizes(self) -> np.ndarray:
        return self.dataset.first_examples(self._requests + 1) - self.dataset.first_examples(self._requests)


class _BatchReader(TorchDataset):
    """Batch number -> batch; what a worker process holds."""

    def __init__(self, dataset: Dataset, plan: np.ndarray, cuts: np.ndarray, history, extras):
        self._dataset, self._plan, self._cuts = dataset, plan, cuts
        self._history, self._extras = history, extras

    def read(self, number: int) -> Batch:
        requests = self._plan[self._cuts[number] : self._cuts[number + 1]]
        return self._dataset.read(requests, self._history, self._extras)

    def __getitem__(self, number: int) -> Packed:
        return pack(self.read(number))


def _as_it_is(packed: Any) -> Any:
    return packed
