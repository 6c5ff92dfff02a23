"""Rival models that go through the same path: logistic regression, DLRM, DCNv2, DIN."""

from opengem.models.baselines.dcnv2 import DCNv2Config
from opengem.models.baselines.din import DINConfig
from opengem.models.baselines.dlrm import DLRMConfig
from opengem.models.baselines.logistic_regression import LogisticRegressionConfig

__all__ = ["DCNv2Config", "DINConfig", "DLRMConfig", "LogisticRegressionConfig"]
