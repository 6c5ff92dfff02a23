"""Generalised dot-product attention: `Act(alpha Q K^T) V`."""

from opengem.ops.gdpa.activations import ACTIVATIONS
from opengem.ops.gdpa.api import gdpa

__all__ = ["ACTIVATIONS", "gdpa"]
