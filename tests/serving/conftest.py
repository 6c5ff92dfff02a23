import copy
import threading
import time
import warnings
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import uvicorn

from opengem.data import Dataset, ingest
from opengem.models.vertical import VerticalConfig
from opengem.schema import load_schema
from opengem.serving.connections import GuardedConnection
from opengem.serving.export import export
from opengem.serving.predictor import Predictor
from opengem.serving.server import bound
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
    """The package as it is served, without a second load; a test may change its predictor."""
    return served(made)


def served(made) -> Any:
    """Return what stands for a `LivePackage` that nobody exchanges."""
    nothing = lambda: None  # noqa: E731
    return SimpleNamespace(predictor=copy.copy(made.predictor), problem="", watch=nothing, close=nothing)


def client_of(live, **settings):
    """Return a client of the application; limits and token as named, server errors as answers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the test client asks for a successor of httpx
        from fastapi.testclient import TestClient
    token = settings.pop("token", "")
    app = create_app(live, ServiceLimits(**settings), token, {"workers": 1})
    return TestClient(app, raise_server_exceptions=False)


@contextmanager
def running(live, **settings):
    """Run the server in a thread of this process; gives the port."""
    plain = {"http": GuardedConnection, "ws": "none", "log_config": None, "access_log": False}
    app = create_app(live, ServiceLimits(**settings))
    config = uvicorn.Config(app, **plain)
    server = uvicorn.Server(config)
    with bound("127.0.0.1", 0) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        while not server.started:
            time.sleep(0.01)
        try:
            yield listening.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join(60)
