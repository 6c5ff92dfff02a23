import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from opengem.data import Dataset, ingest
from opengem.models.vertical import VerticalConfig
from opengem.schema import load_schema
from opengem.serving.export import export
from opengem.serving.live import LivePackage
from opengem.serving.predictor import Predictor
from opengem.serving.service import ServiceLimits, create_app
from opengem.serving.stored_request import RawLogs
from tests.serving import raw_logs


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """Raw logs of every kind, their data set, a model with noisy weights, its package and predictor."""
    folder = tmp_path_factory.mktemp("every-kind")
    schema = load_schema(raw_logs.write(folder / "logs"))
    data = Dataset.open(ingest(schema, folder / "data").folder)
    torch.manual_seed(1)
    model = VerticalConfig(width=8, layers=(16,), history=6).build(data.inputs).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    sample = [data.read(np.arange(30), 6)]
    package = export(model, data, data.inputs, folder / "package", sample=sample, card={"name": "every-kind"})
    return SimpleNamespace(
        schema=schema,
        data=data,
        model=model,
        package=package,
        predictor=Predictor.load(package),
        logs=RawLogs(schema, data),
    )


@pytest.fixture
def live(made):
    """The package, being served; a test may replace its predictor."""
    return LivePackage(made.package.folder)


def client_of(live, **settings):
    """Return a client of the application; limits and token as named, server errors as answers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the test client asks for a successor of httpx
        from fastapi.testclient import TestClient
    token = settings.pop("token", "")
    app = create_app(live, ServiceLimits(**settings), token, {"workers": 1})
    return TestClient(app, raise_server_exceptions=False)
