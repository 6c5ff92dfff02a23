"""Softmax attention inside independent blocks of a jagged sequence."""

from opengem.ops.block_attention.api import block_attention

__all__ = ["block_attention"]
