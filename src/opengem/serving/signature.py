"""The inputs of a package: a batch without labels as named tensors, and which of their sizes may vary."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

from opengem.jagged import Batch, History, JaggedTensor
from opengem.schema.inputs import InputSpec


class Served(nn.Module):
    """A model with the signature of a package: named tensors in, log-odds out.

    One empty request with one example and two events in every stream is added before the model and cut off
    after it. `torch.export` assumes that a size that varies is 2 or more; with the addition this is true inside the
    model for every B >= 1, R >= 1 and L >= 0 outside.

    Args:
        model: The model; it reads no labels and no extras.
        inputs: What the model reads.
    """

    def __init__(self, model: nn.Module, inputs: InputSpec):
        super().__init__()
        self.model = model
        self.inputs = inputs

    def forward(self, tensors: dict[str, Tensor]) -> Tensor:
        """Return log-odds `(B, T)` float32."""
        longer = {name: _longer(name, tensor) for name, tensor in tensors.items()}
        return self.model(from_named(longer, self.inputs)).logits_BT[:-1].float()


def _longer(name: str, tensor: Tensor) -> Tensor:
    """Append what one more request with one example, two events and two values a list adds to a tensor."""
    kind = name.partition(".")[0]
    if name == "request_of_example":
        return torch.cat([tensor, tensor[-1:] + 1])
    if kind == "offsets" or (kind == "bags" and name.endswith(".offsets")):
        return torch.cat([tensor, tensor[-1:] + 2])
    rows = 2 if kind in ("bags", "history", "times") else 1
    return torch.cat([tensor, tensor.new_zeros((rows, *tensor.shape[1:]))])


def to_named(batch: Batch, inputs: InputSpec) -> dict[str, Tensor]:
    """Return what a model may read of `batch` when it serves, by name; the reverse of `from_named`.

    What the batch lacks is left out; the check of the inputs names it.
    """
    named: dict[str, Tensor | None] = {}
    for feature in inputs.features:
        name = feature.name
        if feature.kind == "id":
            named[f"ids.{name}"] = batch.ids.get(name)
        elif feature.kind == "ids" and name in batch.bags:
            named[f"bags.{name}.values"] = batch.bags[name].values
            named[f"bags.{name}.offsets"] = batch.bags[name].offsets
        elif feature.kind == "number":
            named[f"numbers.{name}"] = batch.numbers.get(name)
            named[f"missing.{name}"] = batch.missing.get(name)
        elif feature.kind == "vector":
            named[f"vectors.{name}"] = batch.vectors.get(name)
    for stream in inputs.streams:
        if stream.name not in batch.history:
            continue
        history = batch.history[stream.name]
        for attribute in stream.attributes:
            values = history.ids if attribute.kind == "id" else history.numbers
            named[f"history.{stream.name}.{attribute.name}"] = values.get(attribute.name)
        named[f"times.{stream.name}"] = history.times
        named[f"offsets.{stream.name}"] = history.offsets
    named["request_of_example"] = batch.request_of_example
    named["request_time"] = batch.request_time
    named["surface"] = batch.surface
    named["time"] = batch.time
    return {name: tensor for name, tensor in named.items() if tensor is not None}


def from_named(named: dict[str, Tensor], inputs: InputSpec) -> Batch:
    """Return the batch of named tensors: no labels, no extras, weight 1 and example ids 0."""
    of_kind = {kind: [f.name for f in inputs.features if f.kind == kind] for kind in _KINDS}
    history = {}
    for stream in inputs.streams:
        values = {a.name: named[f"history.{stream.name}.{a.name}"] for a in stream.attributes}
        history[stream.name] = History(
            ids={a.name: values[a.name] for a in stream.attributes if a.kind == "id"},
            numbers={a.name: values[a.name] for a in stream.attributes if a.kind == "number"},
            times=named[f"times.{stream.name}"],
            offsets=named[f"offsets.{stream.name}"],
        )
    surface = named["surface"]
    return Batch(
        ids={n: named[f"ids.{n}"] for n in of_kind["id"]},
        bags={n: JaggedTensor(named[f"bags.{n}.values"], named[f"bags.{n}.offsets"]) for n in of_kind["ids"]},
        numbers={n: named[f"numbers.{n}"] for n in of_kind["number"]},
        missing={n: named[f"missing.{n}"] for n in of_kind["number"]},
        vectors={n: named[f"vectors.{n}"] for n in of_kind["vector"]},
        history=history,
        request_of_example=named["request_of_example"],
        request_time=named["request_time"],
        surface=surface,
        time=named["time"],
        example_id=torch.zeros_like(surface),
        labels={},
        label_mask={},
        weight=torch.ones_like(surface, dtype=torch.float32),
        extras={},
    )


_KINDS = ("id", "ids", "number", "vector")


def dynamic_shapes(inputs: InputSpec) -> dict[str, dict[int, Any]]:
    """Return for each named tensor which dimension varies, for `torch.export`.

    Examples B, requests R, the events L of each stream and the values of each list feature all vary freely.
    """
    examples, requests = Dim("B"), Dim("R")
    shapes: dict[str, dict[int, Any]] = {}
    for i, feature in enumerate(inputs.features):
        rows = requests if feature.owner == "user" else examples
        if feature.kind == "ids":
            shapes[f"bags.{feature.name}.values"] = {0: Dim(f"V{i}")}
            shapes[f"bags.{feature.name}.offsets"] = {0: rows + 1}
        elif feature.kind == "number":
            shapes[f"numbers.{feature.name}"] = {0: rows}
            shapes[f"missing.{feature.name}"] = {0: rows}
        else:
            shapes[f"{'ids' if feature.kind == 'id' else 'vectors'}.{feature.name}"] = {0: rows}
    for i, stream in enumerate(inputs.streams):
        events = Dim(f"L{i}")
        for attribute in stream.attributes:
            shapes[f"history.{stream.name}.{attribute.name}"] = {0: events}
        shapes[f"times.{stream.name}"] = {0: events}
        shapes[f"offsets.{stream.name}"] = {0: requests + 1}
    shapes["request_of_example"] = {0: examples}
    shapes["request_time"] = {0: requests}
    shapes["surface"] = {0: examples}
    shapes["time"] = {0: examples}
    return shapes


def input_names(inputs: InputSpec) -> tuple[str, ...]:
    """Return the names of the tensors in the order in which a package takes them."""
    return tuple(dynamic_shapes(inputs))


def tracing_inputs(inputs: InputSpec) -> dict[str, Tensor]:
    """Return small named tensors of the right kinds to trace a model with: 5 examples of 3 requests."""
    B, R, events = 5, 3, [0, 2, 5, 7]
    named: dict[str, Tensor] = {}
    for feature in inputs.features:
        rows = R if feature.owner == "user" else B
        if feature.kind == "ids":
            named[f"bags.{feature.name}.values"] = torch.zeros(2 * rows, dtype=torch.int64)
            named[f"bags.{feature.name}.offsets"] = 2 * torch.arange(rows + 1)
        elif feature.kind == "number":
            named[f"numbers.{feature.name}"] = torch.zeros(rows)
            named[f"missing.{feature.name}"] = torch.zeros(rows)
        elif feature.kind == "id":
            named[f"ids.{feature.name}"] = torch.zeros(rows, dtype=torch.int64)
        else:
            named[f"vectors.{feature.name}"] = torch.zeros(rows, feature.size)
    for stream in inputs.streams:
        for attribute in stream.attributes:
            kind = torch.int64 if attribute.kind == "id" else torch.float32
            named[f"history.{stream.name}.{attribute.name}"] = torch.zeros(events[-1], dtype=kind)
        named[f"times.{stream.name}"] = torch.arange(events[-1])
        named[f"offsets.{stream.name}"] = torch.tensor(events)
    named["request_of_example"] = torch.tensor([0, 0, 1, 2, 2])
    named["request_time"] = torch.full((R,), 1_000)
    named["surface"] = torch.zeros(B, dtype=torch.int64)
    named["time"] = torch.full((B,), 1_000)
    return named


def without_lists(named: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the same examples with every history and every list feature empty."""
    part = dict(named)
    for name, tensor in named.items():
        kind = name.partition(".")[0]
        if kind == "offsets" or name.endswith(".offsets"):
            part[name] = torch.zeros_like(tensor)
        elif kind in ("bags", "history", "times"):
            part[name] = tensor[:0]
    return part
