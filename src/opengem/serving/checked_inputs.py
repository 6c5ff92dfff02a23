"""The check of named tensors before they reach a package: compiled code trusts its inputs and may read anything."""

import torch
from torch import Tensor

from opengem.errors import DataError, nearest
from opengem.schema.inputs import InputSpec

_Values = tuple[str, torch.dtype, int | None]
"""Flat values of a jagged input: name, type, and number of rows of the table that ids point into."""

_KINDS = {torch.int64: "int64", torch.float32: "float32"}


class InputChecker:
    """Knows the type, shape and range of every input of a package.

    Examples B are counted by `surface`, requests R by `request_time`; the values of a jagged input by its offsets.

    Args:
        inputs: What the model reads.
    """

    def __init__(self, inputs: InputSpec):
        rows = {table.name: table.rows for table in inputs.tables}
        self._whole: list[tuple[str, str, int | None]] = [
            ("request_time", "R", None),
            ("surface", "B", len(inputs.surfaces) + 1),
            ("time", "B", None),
        ]
        self._numbers: list[tuple[str, str, tuple[int, ...]]] = []
        self._jagged: list[tuple[str, str, list[_Values]]] = []
        for f in inputs.features:
            count = "R" if f.owner == "user" else "B"
            if f.kind == "id":
                self._whole.append((f"ids.{f.name}", count, rows[f.table]))
            elif f.kind == "ids":
                values: list[_Values] = [(f"bags.{f.name}.values", torch.int64, rows[f.table])]
                self._jagged.append((f"bags.{f.name}.offsets", count, values))
            elif f.kind == "number":
                self._numbers += [(f"numbers.{f.name}", count, ()), (f"missing.{f.name}", count, ())]
            else:
                self._numbers.append((f"vectors.{f.name}", count, (f.size,)))
        for stream in inputs.streams:
            values = [(f"times.{stream.name}", torch.int64, None)]
            for a in stream.attributes:
                is_id = a.kind == "id"
                kind = torch.int64 if is_id else torch.float32
                values.append((f"history.{stream.name}.{a.name}", kind, rows[a.table] if is_id else None))
            self._jagged.append((f"offsets.{stream.name}", "R", values))

    def check(self, named: dict[str, Tensor]) -> None:
        """Check named tensors.

        Raises:
            DataError: One is missing, unknown, or of a wrong type, shape or range; names it, what must hold, and what
                came.
        """
        known = self._names()
        for name in named:
            if name not in known:
                raise DataError(f'input "{name}" is unknown{nearest(name, known)}. Inputs: {sorted(known)}.')
        for name in known:
            if not isinstance(named.get(name), Tensor):
                raise DataError(f'input "{name}" must be given as a tensor. Received: {named.get(name)!r}.')
        sizes = {"B": _count(named, "surface", "B"), "R": _count(named, "request_time", "R")}
        for name, count, below in self._whole:
            _check(named[name], name, torch.int64, (sizes[count],), f"({count},)")
            if below is not None:
                _in_range(named[name], name, below)
        for name, count, more in self._numbers:
            shape = f"({', '.join([count, *map(str, more)])}{'' if more else ','})"
            _check(named[name], name, torch.float32, (sizes[count], *more), shape)
            _finite(named[name], name)
        owner = named["request_of_example"]
        _check(owner, "request_of_example", torch.int64, (sizes["B"],), "(B,)")
        _in_range(owner, "request_of_example", sizes["R"])
        _rising(owner, "request_of_example")
        for name, count, values in self._jagged:
            self._check_jagged(named, name, count, sizes[count], values)

    def _check_jagged(
        self, named: dict[str, Tensor], name: str, count: str, size: int, values: list[_Values]
    ) -> None:
        offsets = named[name]
        _check(offsets, name, torch.int64, (size + 1,), f"({count} + 1,)")
        _rising(offsets, name)
        first, last = int(offsets[0]), int(offsets[-1])
        for flat, kind, below in values:
            _check(named[flat], flat, kind, (named[flat].shape[:1].numel(),), "(L,)")
            if first != 0 or last != named[flat].shape[0]:
                raise DataError(
                    f'input "{name}" must run from 0 to the {named[flat].shape[0]} values of "{flat}". '
                    f"Received: {first} to {last}."
                )
            if below is not None:
                _in_range(named[flat], flat, below)
            if kind is torch.float32:
                _finite(named[flat], flat)

    def _names(self) -> list[str]:
        names = ["request_of_example", *(w[0] for w in self._whole), *(n[0] for n in self._numbers)]
        for offsets, _, values in self._jagged:
            names += [offsets, *(value[0] for value in values)]
        return names


def _count(named: dict[str, Tensor], name: str, letter: str) -> int:
    tensor = named[name]
    if tensor.dim() != 1 or tensor.shape[0] < 1:
        raise DataError(
            f'input "{name}" must be ({letter},) with {letter} >= 1. Received: {tuple(tensor.shape)}.'
        )
    return tensor.shape[0]


def _check(tensor: Tensor, name: str, kind: torch.dtype, shape: tuple[int, ...], words: str) -> None:
    if tensor.dtype != kind or tuple(tensor.shape) != shape:
        raise DataError(
            f'input "{name}" must be {_KINDS[kind]} {words} = {shape}. '
            f"Received: {str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}."
        )


def _in_range(tensor: Tensor, name: str, below: int) -> None:
    if tensor.numel():
        low, high = (int(v) for v in torch.aminmax(tensor))
        if low < 0 or high >= below:
            raise DataError(f'input "{name}" must lie in [0, {below}). Received: {low if low < 0 else high}.')


def _rising(tensor: Tensor, name: str) -> None:
    if bool((tensor[1:] < tensor[:-1]).any()):
        place = int((tensor[1:] < tensor[:-1]).nonzero()[0]) + 1
        raise DataError(
            f'input "{name}" must never fall. Received: {int(tensor[place])} at {place} after '
            f"{int(tensor[place - 1])}."
        )


def _finite(tensor: Tensor, name: str) -> None:
    if not bool(torch.isfinite(tensor).all()):
        raise DataError(
            f'input "{name}" must be finite. Received: {int((~torch.isfinite(tensor)).sum())} that are not.'
        )
