"""Self-attention over dense rows with rotary encoding of queries, keys and values."""

from opengem.ops.rotary_attention.api import rotary_attention
from opengem.ops.rotary_attention.rotation import rotate

__all__ = ["rotary_attention", "rotate"]
