"""Tokens that the baselines share: features, the candidate, and each stream's mean."""

import torch
from torch import Tensor, nn

from opengem.jagged import Batch
from opengem.nn.inputs import Embedded, InputArch
from opengem.schema.inputs import InputSpec


def mlp(width_in: int, widths: tuple[int, ...], dropout: float) -> nn.Sequential:
    """Return linear layers with ReLU and dropout after each."""
    layers: list[nn.Module] = []
    for width in widths:
        layers += [nn.Linear(width_in, width), nn.ReLU(), nn.Dropout(dropout)]
        width_in = width
    return nn.Sequential(*layers)


def feature_tokens(batch: Batch, embedded: Embedded) -> Tensor:
    """Return `(B, F, D)`: the request's tokens, expanded to its examples, and the examples' own."""
    return torch.cat([embedded.request_RFD[batch.request_of_example], embedded.example_BFD], dim=1)


def mean_history(batch: Batch, embedded: Embedded, inputs: InputSpec) -> Tensor:
    """Return `(B, streams, D)`: the mean event of each stream, zeros where there is none."""
    means = []
    for stream in inputs.streams:
        x_LD, offsets = embedded.events[stream.name], batch.history[stream.name].offsets
        total = x_LD.new_zeros(offsets.shape[0] - 1, x_LD.shape[1])
        total = total.index_add(0, embedded.event_request[stream.name], x_LD)
        lengths = (offsets[1:] - offsets[:-1]).clamp_min(1)
        means.append((total / lengths[:, None])[batch.request_of_example])
    if not means:
        return embedded.example_BFD.new_zeros(batch.surface.shape[0], 0, embedded.example_BFD.shape[2])
    return torch.stack(means, dim=1)


def num_tokens(arch: InputArch) -> int:
    """Number of feature tokens of an example."""
    return arch.num_request_tokens + arch.num_example_tokens
