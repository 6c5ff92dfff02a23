"""Layer normalisation in float32."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class LayerNorm(nn.LayerNorm):
    """Layer normalisation over the last dimension, computed in at least float32 and returned in the input's dtype.

    Args:
        normalized_shape: Width of the last dimension.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Normalise `(..., D)`."""
        wide = input.float() if input.dtype in (torch.bfloat16, torch.float16) else input
        shape = list(self.normalized_shape)
        return F.layer_norm(wide, shape, self.weight, self.bias, self.eps).to(input.dtype)
