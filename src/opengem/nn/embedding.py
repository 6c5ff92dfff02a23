"""The sparse arch: embedding tables and their look-ups."""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from opengem.nn.names import module_key


class EmbeddingTables(nn.Module):
    """Embedding tables of one width, read by one call for all look-ups of a step.

    One call, because a fused backend serves all tables at once and updates the rows in its backward pass.
    Row 0 (a missing value) reads as zeros at the start and is learned like any other.

    Args:
        tables: Table name -> number of rows.
        width: Embedding width E, at least 1.
        scale: Standard deviation of the initial values.
        vocabulary: Table name -> name of the vocabulary whose ids its rows stand for; its own where not named.
    """

    def __init__(
        self,
        tables: dict[str, int],
        width: int,
        scale: float = 0.01,
        vocabulary: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        self.width = width
        self.vocabulary = {module_key(name): (vocabulary or {}).get(name, name) for name in tables}
        self.weights = nn.ParameterDict()
        for name, rows in tables.items():
            weight = torch.randn(rows, width) * scale
            weight[0] = 0.0
            self.weights[module_key(name)] = nn.Parameter(weight)

    def forward(self, lookups: dict[str, tuple[str, Tensor]]) -> dict[str, Tensor]:
        """Look up rows.

        Args:
            lookups: Any key -> (table name, ids of any shape, int64, in [0, rows)).

        Returns:
            The same keys -> float tensors of the ids' shape with E behind it.
        """
        # gradients are sparse: an optimizer step touches only the rows that were used
        return {
            key: F.embedding(ids, self.weights[module_key(table)], sparse=self.training)
            for key, (table, ids) in lookups.items()
        }
