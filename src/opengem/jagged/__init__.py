"""Jagged tensors and the batch."""

from opengem.jagged.batch import Batch, History
from opengem.jagged.jagged_tensor import JaggedTensor, offsets_of, row_of_value

__all__ = ["Batch", "History", "JaggedTensor", "offsets_of", "row_of_value"]
