"""Embedding tables on FBGEMM: look-up, gradient and row-wise AdaGrad in one fused operator."""

import functools
import importlib
import importlib.metadata
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from opengem.errors import BackendUnavailable
from opengem.nn.embedding import EmbeddingTables
from opengem.nn.names import module_key

# FBGEMM is tied to one torch minor, and its metadata does not say so
_PAIRS = {"1.8": "2.13", "1.9": "2.14"}


def fbgemm_problem() -> str:
    """Return in one line why FBGEMM cannot run here, or an empty string. Versions come before any import."""
    found = ""
    for package in ("fbgemm-gpu-cpu", "fbgemm-gpu"):
        try:
            found = importlib.metadata.version(package)
            break
        except importlib.metadata.PackageNotFoundError:
            continue
    if not found:
        return "FBGEMM is not installed (pip install 'opengem[cpu]')"
    fbgemm = ".".join(found.split(".")[:2])
    here = ".".join(torch.__version__.split("+")[0].split(".")[:2])
    wanted = _PAIRS.get(fbgemm)
    if wanted != here:
        fitting = next((f for f, t in _PAIRS.items() if t == here), None)
        pin = (
            f"install fbgemm-gpu-cpu=={fitting}.0" if fitting else "no FBGEMM release is known for this torch"
        )
        return f"FBGEMM {found} belongs to torch {wanted or '(unknown)'}, and torch {torch.__version__} is here: {pin}"
    if broken := _import_error():
        return (
            f"fbgemm_gpu {found} cannot be imported: {broken}. The pair that works is fbgemm-gpu-cpu=={fbgemm}.0 "
            f"with torch {wanted}, installed anew"
        )
    return ""


@functools.cache
def _import_error() -> str:
    """Return the first line of what importing FBGEMM raises, or an empty string."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # deprecations inside FBGEMM's own import
            importlib.import_module("fbgemm_gpu.split_table_batched_embeddings_ops_training")
    except Exception as error:  # a broken package may raise anything
        lines = str(error).splitlines() or [""]
        return f"{type(error).__name__}: {lines[0]}"
    return ""


class FusedTables(nn.Module):
    """The tables of an `EmbeddingTables`, side by side in one FBGEMM table of R1 + R2 + ... rows.

    Same look-ups and same state dict as the module that it replaces. Rows are updated in the backward pass by row-wise
    AdaGrad: `s += mean(g^2); w -= lr g / (sqrt(s) + eps)`, s one number a row. FBGEMM's CPU kernel takes a weight decay
    and ignores it, so there is none here. A gradient that is not finite raises `FloatingPointError` in the backward
    pass, before any row is touched.

    Args:
        tables: The module to replace; its values are copied.
        eps: Added to the root of the second moment.

    Raises:
        BackendUnavailable: FBGEMM is missing, belongs to another torch, or the width is no multiple of 4.
    """

    def __init__(self, tables: EmbeddingTables, eps: float) -> None:
        super().__init__()
        problem = fbgemm_problem()
        if problem:
            raise BackendUnavailable(f'training.table_backend "fbgemm" cannot run: {problem}')
        if tables.width % 4:
            raise BackendUnavailable(
                f'training.table_backend "fbgemm" needs an embedding width that is a multiple of 4. '
                f'Received: {tables.width}. Use another width or table_backend = "reference"'
            )
        self.width, self.vocabulary = tables.width, tables.vocabulary
        self.rows = {name: weight.shape[0] for name, weight in tables.weights.items()}
        self.base: dict[str, int] = {}
        total = 0
        for name, rows in self.rows.items():
            self.base[name], total = total, total + rows
        self.fused: Any = _table(total, self.width, eps)
        # held outside the module tree: FBGEMM's own parameter belongs to no other optimizer or state dict
        self.__dict__["fused"] = self._modules.pop("fused")
        for name, weight in tables.weights.items():
            self.weight(name).copy_(weight.detach())

    def weight(self, name: str) -> Tensor:
        """Return the rows of one table, a view `(rows, E)`."""
        start = self.base[name]
        return self.fused.split_embedding_weights()[0].data[start : start + self.rows[name]]

    def moment(self, name: str) -> Tensor:
        """Return the second moment of one table, a view `(rows,)`."""
        start = self.base[name]
        state = self.fused.split_optimizer_states()[0][0].view(-1)
        return state[start : start + self.rows[name]]

    def set_learning_rate(self, rate: float) -> None:
        """Set the rate of the updates that the next backward pass makes."""
        self.fused.set_learning_rate(rate)

    def forward(self, lookups: dict[str, tuple[str, Tensor]]) -> dict[str, Tensor]:
        """Look up rows; see `EmbeddingTables.forward`."""
        flat = [ids.reshape(-1) + self.base[module_key(table)] for table, ids in lookups.values()]
        sizes = [f.numel() for f in flat]
        indices = torch.cat(flat)
        # bags of one id each: the pooled operator has the faster backward pass on CPU
        rows = self.fused(indices, torch.arange(indices.numel() + 1))
        if rows.requires_grad:
            names = [table for table, _ in lookups.values()]
            rows.register_hook(lambda gradient: _require_finite(gradient, names, sizes))
        parts = rows.split(sizes)
        return {
            key: part.view(*ids.shape, self.width)
            for (key, (_, ids)), part in zip(lookups.items(), parts, strict=True)
        }

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        for name in self.rows:
            destination[f"{prefix}weights.{name}"] = self.weight(name)

    def _load_from_state_dict(
        self, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
    ):
        for name in self.rows:
            key = f"{prefix}weights.{name}"
            if key not in state_dict:
                missing_keys.append(key)
            elif state_dict[key].shape != self.weight(name).shape:
                error_msgs.append(
                    f"{key}: {tuple(state_dict[key].shape)} is not {tuple(self.weight(name).shape)}"
                )
            else:
                self.weight(name).copy_(state_dict[key])


def _require_finite(gradient: Tensor, tables: list[str], sizes: list[int]) -> None:
    """Stop the backward pass before the fused update: it would write NaN into the rows."""
    if not torch.isfinite(gradient).all():
        for name, part in zip(tables, gradient.split(sizes), strict=True):
            wrong = int((~torch.isfinite(part)).sum())
            if wrong:
                raise FloatingPointError(f"{wrong} of {part.numel()} values of the gradient of table {name}")


def fuse_tables(model: nn.Module, eps: float) -> nn.Module:
    """Replace each `EmbeddingTables` of the model by `FusedTables`; return the model."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, EmbeddingTables):
                setattr(parent, name, FusedTables(child, eps))
    return model


def _table(rows: int, width: int, eps: float) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecations inside FBGEMM's own import
        from fbgemm_gpu.split_embedding_configs import EmbOptimType
        from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
        from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
            ComputeDevice,
            SplitTableBatchedEmbeddingBagsCodegen,
        )

        return SplitTableBatchedEmbeddingBagsCodegen(
            [(rows, width, EmbeddingLocation.HOST, ComputeDevice.CPU)],
            optimizer=EmbOptimType.EXACT_ROWWISE_ADAGRAD,
            pooling_mode=PoolingMode.SUM,
            learning_rate=0.0,
            eps=eps,
            device=torch.device("cpu"),
        )
