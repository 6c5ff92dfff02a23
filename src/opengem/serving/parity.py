"""The parity sample: the inputs on which a package must answer as its model, at every size that a request may have."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from opengem.jagged import Batch, offsets_of
from opengem.schema.inputs import UNSEEN_ROW, InputSpec
from opengem.serving.signature import to_named, without_lists

ADS = (1, 2, 7, 100)
EVENTS = (0, 1, 50, None)  # None is the most that the model reads
REQUESTS = (1, 5)

Named = dict[str, Tensor]


def parity_cases(sample: Sequence[Batch], inputs: InputSpec, history: Mapping[str, int]) -> dict[str, Named]:
    """Return what a package is checked on, by name.

    The sample as it is; one request with 1, 2, 7 and 100 ads, and five requests with 11 of which two have no history,
    each with histories of 0, 1, 50 and the most events that the model reads; and the same with unseen ids, with
    missing numbers and with empty lists. Values are those of the sample, repeated where it has too few.

    Args:
        sample: Batches; one of them at least holds an example.
        inputs: What the model reads.
        history: Stream -> most events that the model reads.
    """
    whole = {f"sample-{i}": to_named(b.to("cpu"), inputs) for i, b in enumerate(sample) if b.num_examples}
    first = next(iter(whole.values()))
    cases: dict[str, Named] = dict(whole)
    for requests in REQUESTS:
        for ads in ADS if requests == 1 else (11,):
            for events in EVENTS:
                name = f"requests={requests} ads={ads} events={'most' if events is None else events}"
                cases[name] = resized(first, inputs, history, requests, ads, events)
    base = resized(first, inputs, history, 1, 7, 1)
    return cases | {
        "unseen ids": _filled(base, ("ids", "bags", "history"), UNSEEN_ROW),
        "missing numbers": _filled(_filled(base, ("numbers",), 0), ("missing",), 1),
        "empty lists": without_lists(base),
        "one ad, empty lists": without_lists(resized(first, inputs, history, 1, 1, 0)),
    }


def resized(
    named: Named, inputs: InputSpec, history: Mapping[str, int], requests: int, ads: int, events: int | None
) -> Named:
    """Return inputs of a given size, made of the rows of others.

    Args:
        named: Inputs to take rows from, over and over if need be.
        inputs: What the model reads.
        history: Stream -> most events that the model reads.
        requests: R. Of several, the second and the last have empty histories.
        ads: B, at least R.
        events: Events of each other request in each stream; None is `history`.
    """
    request = torch.arange(requests) % len(named["request_time"])
    example = torch.arange(ads) % len(named["surface"])
    owner = torch.arange(ads) * requests // ads
    result: Named = {"request_of_example": owner, "request_time": named["request_time"][request]}
    result["surface"] = named["surface"][example]
    result["time"] = result["request_time"][owner]
    for f in inputs.features:
        rows = request if f.owner == "user" else example
        if f.kind == "ids":
            offsets, places = _lists(named[f"bags.{f.name}.offsets"], rows)
            result[f"bags.{f.name}.offsets"] = offsets
            result[f"bags.{f.name}.values"] = named[f"bags.{f.name}.values"][places]
        else:
            parts = {"id": ("ids",), "number": ("numbers", "missing"), "vector": ("vectors",)}[f.kind]
            result |= {f"{part}.{f.name}": named[f"{part}.{f.name}"][rows] for part in parts}
    empty = {1, requests - 1} if requests > 1 else set()
    for stream in inputs.streams:
        wanted = history[stream.name] if events is None else events
        lengths = torch.tensor([0 if i in empty else wanted for i in range(requests)])
        result[f"offsets.{stream.name}"] = offsets_of(lengths)
        result |= _events(named, stream.name, [a.name for a in stream.attributes], request, lengths)
    return result


def _lists(offsets: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the offsets of chosen lists, and the places of their values."""
    places = [torch.arange(int(offsets[r]), int(offsets[r + 1])) for r in rows]
    lengths = torch.tensor([len(p) for p in places])
    return offsets_of(lengths), torch.cat([torch.zeros(0, dtype=torch.int64), *places])


def _events(named: Named, stream: str, attributes: list[str], request: Tensor, lengths: Tensor) -> Named:
    """Return histories of given lengths: each event of a request once or several times, in its order.

    A request without any takes unknown events of one second before it.
    """
    names = [f"times.{stream}", *(f"history.{stream}.{a}" for a in attributes)]
    parts: dict[str, list[Tensor]] = {name: [named[name][:0]] for name in names}
    offsets = named[f"offsets.{stream}"]
    for row, length in zip(request.tolist(), lengths.tolist(), strict=True):
        first, last = int(offsets[row]), int(offsets[row + 1])
        places = first + torch.arange(length) * (last - first) // max(length, 1)
        for name in names:
            if last > first:
                parts[name].append(named[name][places])
                continue
            value = int(named["request_time"][row]) - 1_000 if name.startswith("times.") else UNSEEN_ROW
            parts[name].append(torch.full((length,), value, dtype=named[name].dtype))
    return {name: torch.cat(part) for name, part in parts.items()}


def _filled(named: Named, kinds: tuple[str, ...], value: int) -> Named:
    """Return the same inputs with one value in all ids or numbers of some kinds."""
    return {
        name: torch.full_like(tensor, value)
        if name.partition(".")[0] in kinds and not name.endswith(".offsets")
        else tensor
        for name, tensor in named.items()
    }
