"""Attention in C: the library behind the `native` backends."""

from opengem.ops.native.library import obstacle, run

__all__ = ["obstacle", "run"]
