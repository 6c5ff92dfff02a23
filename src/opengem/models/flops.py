"""Floating-point operations of a forward pass, counted on real lengths."""

from typing import Any, cast

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from opengem.jagged import Batch
from opengem.nn.inputs import FeatureTokens, InputArch
from opengem.ops.native.flops import attention_flops


def model_flops(model: nn.Module, batch: Batch) -> float:
    """Return the forward FLOPs of `model` on `batch`: matrix products only, an addition and a product count two.

    A model with a method `flops(batch)` answers by its formula, in which padding and recomputation do not count. Any
    other is run once, without gradients, and its products are counted as they happen, padding included; ask it for a
    few batches and not for each. Forward and backward together cost three times the answer.

    Args:
        model: A model of this package.
        batch: The batch to count for.
    """
    formula = getattr(model, "flops", None)
    return float(formula(batch)) if formula is not None else counted_flops(model, batch)


class FlopsPerExample:
    """Forward FLOPs of one example, for a log line: by formula on each batch, or counted on one batch in `every`.

    Counting runs the model once more, under a dispatch mode that costs several times the step itself.

    Args:
        model: A model of this package.
        every: Batches from one count to the next, where a count is needed.
    """

    def __init__(self, model: nn.Module, every: int) -> None:
        self.model, self.every = model, every
        self.asked, self.last = 0, 0.0

    def __call__(self, batch: Batch) -> float:
        """Return the FLOPs of this batch, or of the last one that was counted, divided by its examples."""
        if self.asked % self.every == 0 or hasattr(self.model, "flops"):
            self.last = model_flops(self.model, batch) / batch.num_examples
        self.asked += 1
        return self.last


def counted_flops(model: nn.Module, batch: Batch) -> float:
    """Run the model once and return the FLOPs that happened; where it pads, padding included."""
    training = model.training
    known = cast(Any, {**CPU_ATTENTION, **attention_flops()})
    counter = FlopCounterMode(display=False, custom_mapping=known)
    try:
        model.eval()
        with torch.no_grad(), counter:
            model(batch)
    finally:
        model.train(training)
    return float(counter.get_total_flops())


def _attention_flops(q: torch.Size, k: torch.Size, v: torch.Size, *_args: Any, **_kwargs: Any) -> int:
    rows, heads, queries, width = q
    return 2 * rows * heads * queries * k[2] * (width + v[3])


CPU_ATTENTION = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention_flops}
"""Softmax attention on CPU, which torch's own counter does not know."""


def linear_flops(module: nn.Module, rows: float) -> float:
    """Return the FLOPs of all linear layers inside `module`, each applied to `rows` rows."""
    return sum(2 * rows * m.weight.numel() for m in module.modules() if isinstance(m, nn.Linear))


def input_flops(arch: InputArch, batch: Batch) -> float:
    """Return the forward FLOPs of the input arch."""
    D, E = arch.config.width, arch.config.embedding_width
    total = _token_flops(arch.request_tokens, batch.num_requests)
    total += _token_flops(arch.example_tokens, batch.num_examples)
    for stream in arch.inputs.streams:
        events = batch.history[stream.name].times.shape[0]
        ids = sum(a.kind == "id" for a in stream.attributes)
        total += 2 * events * D * (ids * E + len(stream.attributes) - ids)
    total += 2 * batch.num_examples * len(arch.shared) * E * D
    return total + (linear_flops(arch.own, batch.num_examples) if arch.own is not None else 0.0)


def _token_flops(tokens: FeatureTokens, rows: int) -> float:
    products = 2 * rows * tokens.project.numel() if tokens.id_features else 0.0
    products += linear_flops(tokens.vectors, rows)
    return products + (linear_flops(tokens.numbers, rows) if tokens.numbers is not None else 0.0)
