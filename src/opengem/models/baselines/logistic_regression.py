"""Logistic regression: one weight a feature value, no interaction, no history."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from opengem.jagged import Batch, row_of_value
from opengem.models.output import ModelConfig, Output
from opengem.nn.embedding import EmbeddingTables
from opengem.nn.heads import DomainHeads, HeadsConfig
from opengem.schema.inputs import InputSpec


@dataclass(frozen=True, kw_only=True)
class LogisticRegressionConfig(ModelConfig, type="logistic_regression"):
    """Settings of logistic regression: it reads no history."""

    history: int = 0

    def build(self, inputs: InputSpec) -> "LogisticRegression":
        """Return the model for these inputs."""
        return LogisticRegression(self, inputs)


class LogisticRegression(nn.Module):
    """`z_t = b_t + c_{s,t} + sum_f w_{t,f}[x_f] + v_t . numbers`, one set of weights a task.

    Each feature has its own weight for each id, also where features share a table.
    """

    def __init__(self, config: LogisticRegressionConfig, inputs: InputSpec) -> None:
        super().__init__()
        self.config, self.inputs = config, inputs
        self.id_features = [f for f in inputs.features if f.kind in ("id", "ids")]
        self.other = [f for f in inputs.features if f.kind in ("number", "vector")]
        T = len(inputs.tasks)
        self.tables = EmbeddingTables(
            {f.name: inputs.table_rows(f.table) for f in self.id_features},
            T,
            scale=0.0,
            vocabulary={f.name: f.table for f in self.id_features},
        )
        width = sum(2 if f.kind == "number" else f.size for f in self.other)
        self.linear = nn.Linear(width, T, bias=False) if width else None
        if self.linear is not None:
            nn.init.zeros_(self.linear.weight)
        self.heads = DomainHeads(HeadsConfig(hidden=0), inputs, T)
        for i, tower in enumerate(self.heads.towers):
            with torch.no_grad():  # the towers only pick the task's own column
                tower.weight.zero_()  # type: ignore[union-attr, operator]
                tower.weight[0, i] = 1.0  # type: ignore[index]
            tower.requires_grad_(False)
        self.heads.gain.requires_grad_(False)

    def forward(self, batch: Batch) -> Output:
        """Score a batch."""
        owner = batch.request_of_example
        rows = self.tables(
            {
                f.name: (f.name, batch.ids[f.name] if f.kind == "id" else batch.bags[f.name].values)
                for f in self.id_features
            }
        )
        total = self.heads.bias.new_zeros(batch.surface.shape[0], len(self.inputs.tasks))
        for f in self.id_features:
            value = rows[f.name]
            if f.kind == "ids":
                bag = batch.bags[f.name]
                pooled = value.new_zeros(bag.offsets.shape[0] - 1, value.shape[1])
                value = pooled.index_add(0, row_of_value(bag.offsets, value.shape[0]), value)
                value = value / bag.lengths.clamp_min(1)[:, None]
            total = total + (value[owner] if f.owner == "user" else value)
        if self.linear is not None:
            total = total + self.linear(self._numbers(batch))
        return Output(self.heads(total, batch.surface), total)

    def _numbers(self, batch: Batch) -> Tensor:
        parts = []
        for f in self.other:
            if f.kind == "number":
                x = torch.stack([batch.numbers[f.name].clamp(-5, 5), batch.missing[f.name]], dim=1)
            else:
                x = batch.vectors[f.name]
            parts.append(x[batch.request_of_example] if f.owner == "user" else x)
        return torch.cat(parts, dim=1)
