"""One row a surface."""

from torch import nn

from opengem.schema.inputs import InputSpec


class SurfaceEmbedding(nn.Embedding):
    """An embedding with one row a surface: row i + 1 is surface i, row 0 any surface that the schema does not know.

    A class of its own, so that rows can be found by the surface's name in a model built for other surfaces.

    Args:
        inputs: Surfaces.
        width: Width of a row.
    """

    def __init__(self, inputs: InputSpec, width: int) -> None:
        super().__init__(len(inputs.surfaces) + 1, width)
