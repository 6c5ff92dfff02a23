"""Assembled models. Importing this package registers every shipped model type."""

from opengem.models import baselines, gem_config, vertical
from opengem.models.output import ModelConfig, Output

__all__ = ["ModelConfig", "Output", "baselines", "gem_config", "vertical"]
