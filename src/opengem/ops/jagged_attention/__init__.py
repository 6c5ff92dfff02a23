"""Softmax attention between the rows of jagged tensors."""

from opengem.ops.jagged_attention.api import jagged_attention

__all__ = ["jagged_attention"]
