"""One batch of examples: what the loader yields and every model reads."""

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree

from opengem.errors import ConfigError
from opengem.jagged.jagged_tensor import JaggedTensor, check_offsets


@dataclass
class History:
    """The histories of one stream for the R requests of a batch; newest event last, no padding.

    Attributes:
        ids: Id attributes, each `(L,)` int64: rows of the attribute's embedding table.
        numbers: Number attributes, each `(L,)` float32, standardised, 0 where missing.
        times: `(L,)` int64, Unix ms; `MISSING_TIME` where an event has none.
        offsets: `(R + 1,)` int64.

    Raises:
        ConfigError: The offsets do not cut the events into rows; see `JaggedTensor`.
    """

    ids: dict[str, Tensor]
    numbers: dict[str, Tensor]
    times: Tensor
    offsets: Tensor

    def __post_init__(self) -> None:
        """Check the offsets against the events."""
        check_offsets(self.offsets, self.times)


@dataclass
class Batch:
    """B examples of R requests. What belongs to the user is held once a request.

    Attributes:
        ids: Features of kind `id`: `(R,)` int64 for user-owned ones, `(B,)` otherwise; rows of a table.
        bags: Features of kind `ids`: jagged over R for user-owned ones, over B otherwise.
        numbers: Features of kind `number`: float32 standardised by the training window, 0 where missing.
        missing: Same keys as `numbers`: float32, 1 where the number is missing.
        vectors: Features of kind `vector`: `(R, size)` or `(B, size)` float32, zeros where missing.
        history: Stream name -> histories of the R requests.
        request_of_example: `(B,)` int64, index into the R requests; requests are contiguous and in order.
        request_time: `(R,)` int64 Unix ms; every history ends strictly before it.
        surface: `(B,)` int64; 0 is any surface unknown to the schema.
        time: `(B,)` int64 Unix ms.
        example_id: `(B,)` int64.
        labels: Task -> `(B,)` float32; 0 where masked.
        label_mask: Task -> `(B,)` float32; 0 where the label is missing, immature or not defined.
        weight: `(B,)` float32.
        extras: Named tensors that a stage adds, such as a teacher's probabilities `(B,)` float32.

    Raises:
        ConfigError: A part has not one row for each example or request; names it, and both numbers.
    """

    ids: dict[str, Tensor]
    bags: dict[str, JaggedTensor]
    numbers: dict[str, Tensor]
    missing: dict[str, Tensor]
    vectors: dict[str, Tensor]
    history: dict[str, History]
    request_of_example: Tensor
    request_time: Tensor
    surface: Tensor
    time: Tensor
    example_id: Tensor
    labels: dict[str, Tensor]
    label_mask: dict[str, Tensor]
    weight: Tensor
    extras: dict[str, Tensor]

    def __post_init__(self) -> None:
        """Check the number of rows of every part."""
        if type(self.surface) is not Tensor or type(self.request_time) is not Tensor:
            return  # traced, or a placeholder of a tree of tensors
        B, R = self.num_examples, self.num_requests
        for name in ("request_of_example", "time", "example_id", "weight"):
            _require_rows(name, getattr(self, name).shape[0], B, B)
        for part in ("labels", "label_mask", "extras"):
            for name, values in getattr(self, part).items():
                _require_rows(f'{part} "{name}"', values.shape[0], B, B)
        for part in ("ids", "bags", "numbers", "missing", "vectors"):
            for name, values in getattr(self, part).items():
                rows = values.rows if isinstance(values, JaggedTensor) else values.shape[0]
                _require_rows(f'{part} of feature "{name}"', rows, B, R)
        for name, history in self.history.items():
            _require_rows(f'history "{name}"', history.offsets.shape[0] - 1, R, R)
            for attribute, values in (history.ids | history.numbers).items():
                events = history.times.shape[0]
                _require_rows(f'"{attribute}" of history "{name}"', values.shape[0], events, events)

    @property
    def num_examples(self) -> int:
        """Number of examples B."""
        return self.surface.shape[0]

    @property
    def num_requests(self) -> int:
        """Number of requests R."""
        return self.request_time.shape[0]

    def num_events(self) -> int:
        """Number of history events of all streams together."""
        return sum(h.times.shape[0] for h in self.history.values())

    def to(self, device: torch.device | str) -> "Batch":
        """Return the batch on `device`."""
        return _map(self, lambda t: t.to(device, non_blocking=True))


def _require_rows(name: str, rows: int, examples: int, requests: int) -> None:
    if rows not in (examples, requests):
        wanted = str(examples) if examples == requests else f"{examples} (examples) or {requests} (requests)"
        raise ConfigError(f"{name} must have as many rows as the batch: {wanted}. Received: {rows}")


def _map(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, dict):
        return {k: _map(v, function) for k, v in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return type(value)(**{f.name: _map(getattr(value, f.name), function) for f in fields(value)})
    return value


_pytree.register_dataclass(History)
_pytree.register_dataclass(Batch)
