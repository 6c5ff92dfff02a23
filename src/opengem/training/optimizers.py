"""The two optimizers of a run: AdamW for the dense part, row-wise AdaGrad for the tables."""

import torch
from torch import Tensor, nn

from opengem.distributed.fused_tables import FusedTables
from opengem.errors import ConfigError
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
        """Clip, update, and clear the gradients; return the 2-norm of the dense gradient before clipping.

        Raises:
            FloatingPointError: A gradient is not finite; names the parameter. Nothing was updated, but for tables that
                a fused backend has updated in the backward pass.
        """
        if problem := self.tables.not_finite():
            raise FloatingPointError(problem)
        largest = self.config.clip or float("inf")
        gradients = [p.grad for p in self.dense.values() if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        if not torch.isfinite(norm):
            raise FloatingPointError(self._not_finite())
        torch.nn.utils.clip_grads_with_norm_(self.dense.values(), largest, norm)
        self.adamw.step()
        self.adamw.zero_grad(set_to_none=True)
        self.tables.step(self.config.table_learning_rate * self.factor(step))
        return float(norm)

    def _not_finite(self) -> str:
        for name, parameter in self.dense.items():
            if parameter.grad is not None and not torch.isfinite(parameter.grad).all():
                wrong = int((~torch.isfinite(parameter.grad)).sum())
                return f"{wrong} of {parameter.numel()} values of the gradient of {name}"
        return "the norm of the dense gradient, too large for float32"

    def state(self) -> dict[str, Tensor]:
        """Return all state as named tensors; the same names whichever table backend runs."""
        tensors: dict[str, Tensor] = {}
        for name, parameter in self.dense.items():
            for key, value in self.adamw.state.get(parameter, {}).items():
                tensors[f"adamw/{name}/{key}"] = torch.as_tensor(value).clone()
        return tensors | self._table_moments()

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """Restore what `state` returned.

        Raises:
            ConfigError: The state of a parameter is missing, or belongs to none.
        """
        found: dict[str, dict[str, Tensor]] = {}
        for key, value in tensors.items():
            if key.startswith("adamw/"):
                name, _, part = key.removeprefix("adamw/").rpartition("/")
                found.setdefault(name, {})[part] = value.clone()
        unexpected = [name for name in found if name not in self.dense]
        if unexpected or (self.dense and not found):
            raise ConfigError(
                "the checkpoint must hold the optimizer state of the model's parameters. Received: "
                + (f"state of {unexpected[0]}" if unexpected else "none")
            )
        for name, state in found.items():  # a parameter that never had a gradient has no state
            self.adamw.state[self.dense[name]] = state
        self.load_table_state(tensors)

    def load_table_state(self, tensors: dict[str, Tensor]) -> None:
        """Restore the part of the state that belongs to the embedding tables.

        Raises:
            ConfigError: That of a table is missing.
        """
        for name, moment in self._table_moments().items():
            if name not in tensors:
                raise ConfigError(
                    f"the checkpoint must hold the AdaGrad sums of all tables. Received: no {name}"
                )
            moment.copy_(tensors[name])

    def _table_moments(self) -> dict[str, Tensor]:
        """Return the sums of all tables, as they are in memory; the same names whichever table backend runs."""
        moments = {f"adagrad/{name}": moment for name, moment in self.tables.moments.items()}
        for prefix, tables in self.fused.items():
            moments.update({f"adagrad/{prefix}.{name}": tables.moment(name) for name in tables.rows})
        return moments
