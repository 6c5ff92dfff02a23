"""The two optimizers of a run: AdamW for the dense part, row-wise AdaGrad for the tables."""

import torch
from torch import Tensor, nn

from opengem.distributed.fused_tables import FusedTables
from opengem.nn.embedding import EmbeddingTables
from opengem.training.row_wise_adagrad import RowWiseAdaGrad
from opengem.training.run import TrainingConfig

TABLE_EPS = 1e-8


class Optimizers:
    """Steps both parts of a model at rates that rise, then fall linearly to zero.

    Args:
        model: The model, its tables fused or not.
        config: Rates, decay, warm-up and clipping.
        total_steps: Steps of the whole run.
    """

    def __init__(self, model: nn.Module, config: TrainingConfig, total_steps: int) -> None:
        self.config, self.total_steps = config, max(total_steps, 1)
        self.fused = {n: m for n, m in model.named_modules() if isinstance(m, FusedTables)}
        tables = {}
        for name, module in model.named_modules():
            if isinstance(module, EmbeddingTables):
                tables.update({f"{name}.{k}": w for k, w in module.weights.items()})
        self.tables = RowWiseAdaGrad(tables, TABLE_EPS, config.table_l2)
        of_tables = {id(w) for w in tables.values()}
        self.dense = {n: p for n, p in model.named_parameters() if id(p) not in of_tables and p.requires_grad}
        matrices = [p for p in self.dense.values() if p.ndim >= 2]
        vectors = [p for p in self.dense.values() if p.ndim < 2]
        groups = [
            {"params": matrices, "weight_decay": config.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ]
        self.adamw = torch.optim.AdamW([g for g in groups if g["params"]], lr=config.learning_rate)

    def factor(self, step: int) -> float:
        """Return the share of the peak rate at a step: up over the warm-up, then linearly to zero."""
        warm = max(int(self.config.warmup * self.total_steps), 1)
        rise = min(1.0, (step + 1) / warm)
        return rise * max(0.0, 1.0 - step / self.total_steps)

    def prepare(self, step: int) -> None:
        """Set the rates of a step; fused tables need theirs before the backward pass."""
        factor = self.factor(step)
        for tables in self.fused.values():
            tables.set_learning_rate(self.config.table_learning_rate * factor)
        for group in self.adamw.param_groups:
            group["lr"] = self.config.learning_rate * factor

    def step(self, step: int) -> float:
        """Clip, update, and clear the gradients; return the dense gradient's norm before clipping."""
        largest = self.config.clip or float("inf")
        norm = torch.nn.utils.clip_grad_norm_(self.dense.values(), largest)
        self.adamw.step()
        self.adamw.zero_grad(set_to_none=True)
        self.tables.step(self.config.table_learning_rate * self.factor(step))
        return float(norm)

    def state(self) -> dict[str, Tensor]:
        """Return all state as named tensors; the same names whichever table backend runs."""
        tensors: dict[str, Tensor] = {}
        for name, parameter in self.dense.items():
            for key, value in self.adamw.state.get(parameter, {}).items():
                tensors[f"adamw/{name}/{key}"] = torch.as_tensor(value).clone()
        for name, moment in self.tables.moments.items():
            tensors[f"adagrad/{name}"] = moment
        for prefix, tables in self.fused.items():
            for name in tables.rows:
                tensors[f"adagrad/{prefix}.{name}"] = tables.moment(name).clone()
        return tensors

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """Restore what `state` returned."""
        for name, parameter in self.dense.items():
            prefix = f"adamw/{name}/"
            found = {k.removeprefix(prefix): v.clone() for k, v in tensors.items() if k.startswith(prefix)}
            if found:
                self.adamw.state[parameter] = found
        for name, moment in self.tables.moments.items():
            moment.copy_(tensors[f"adagrad/{name}"])
        for prefix, tables in self.fused.items():
            for name in tables.rows:
                tables.moment(name).copy_(tensors[f"adagrad/{prefix}.{name}"])
