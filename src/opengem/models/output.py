"""What every model answers, and the family of model configurations."""

from dataclasses import dataclass

from torch import Tensor
from torch.utils import _pytree

from opengem.config import Family


@dataclass
class Output:
    """Answer of a model for B examples.

    Attributes:
        logits_BT: Log-odds per task, float32; conditional tasks are already multiplied out.
        embedding_BD: The trunk that the heads read: the representation that transfer can use.
    """

    logits_BT: Tensor
    embedding_BD: Tensor


_pytree.register_dataclass(Output)


class ModelConfig(Family):
    """Base of every model's configuration.

    A member has `build(inputs) -> nn.Module` and the attribute `history`: the most events a stream that it reads.
    """

    history: int

    def build(self, inputs):
        """Return the model for these inputs."""
        raise NotImplementedError(f"{type(self).__name__} must define build(inputs)")
