"""From a trained model to answers: export, packages, the predictor, batch prediction and the server."""

from opengem.serving.export import export
from opengem.serving.fields import RequestError
from opengem.serving.package import Package
from opengem.serving.predict import predict
from opengem.serving.predictor import Predictor
from opengem.serving.request import Limits
from opengem.serving.server import serve
from opengem.serving.service import ServiceLimits, create_app

__all__ = [
    "Limits",
    "Package",
    "Predictor",
    "RequestError",
    "ServiceLimits",
    "create_app",
    "export",
    "predict",
    "serve",
]
