"""The reference server: POST /rank, GET /health, GET /card."""

import json
import logging
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opengem.errors import BackendUnavailable
from opengem.serving.fields import RequestError
from opengem.serving.predictor import Predictor
from opengem.serving.request import Limits

if TYPE_CHECKING:
    from fastapi import FastAPI

_LOG = logging.getLogger(__name__)


def create_app(predictor: Predictor, limits: Limits | None = None) -> "FastAPI":
    """Return the HTTP application of a predictor.

    Every error is `{"error": {"field", "message"}}`: 400 no JSON; 413 body too large; 422 a field breaks a rule; 503
    with `Retry-After` when `limits.concurrent` requests are being worked on; 500 without details, which go to the
    log. Nothing that was sent is repeated in an error.

    Args:
        predictor: The loaded package; its own limits hold for the contents of requests.
        limits: Size of the body and number of requests at once; the predictor's if not given.

    Raises:
        BackendUnavailable: FastAPI is not installed.
    """
    try:
        from fastapi import FastAPI, Request
        from fastapi.concurrency import run_in_threadpool
        from fastapi.responses import JSONResponse
    except ImportError as error:
        raise BackendUnavailable(
            'the server needs FastAPI. Install it with: pip install "opengem[serve]"'
        ) from error
    limits = limits or predictor.limits
    places = threading.BoundedSemaphore(limits.concurrent)
    app = FastAPI(title="OpenGEM", docs_url=None, redoc_url=None, openapi_url=None)

    def refusal(status: int, message: str, field: str = "", **headers: str) -> JSONResponse:
        body = {"error": {"field": field, "message": message}}
        return JSONResponse(body, status, headers={k.replace("_", "-"): v for k, v in headers.items()})

    @app.exception_handler(404)
    @app.exception_handler(405)
    async def _no_such_route(request: Request, _: Exception) -> JSONResponse:
        return refusal(404, "must be POST /rank, GET /health or GET /card.")

    @app.get("/health")
    async def _health() -> dict[str, Any]:
        return health(predictor)

    @app.get("/card")
    async def _card() -> dict[str, Any]:
        return predictor.package.facts["card"]

    @app.post("/rank")
    async def _rank(request: Request) -> JSONResponse:
        body = await _read(request, limits.body_bytes)
        if body is None:
            return refusal(413, f"must be at most {limits.body_bytes} bytes.", "request")
        if not places.acquire(blocking=False):
            return refusal(503, "is busy. Try again.", Retry_After="1")
        try:
            return JSONResponse(await run_in_threadpool(_answer, predictor, body))
        except _NoJSONError as broken:
            return refusal(400, str(broken), "request")
        except RequestError as broken:
            return refusal(422, broken.rule, broken.field)
        except Exception:
            _LOG.exception("a request failed")
            return refusal(500, "failed inside. The server's log says why.")
        finally:
            places.release()

    return app


def health(predictor: Predictor) -> dict[str, Any]:
    """Return what a caller must know to use the package: state, schema, tasks, surfaces, history limits."""
    facts = predictor.package.facts
    listed = ("schema", "tasks", "surfaces", "history", "role", "kind", "torch", "opengem", "made", "parity")
    return {"status": "ok"} | {name: facts[name] for name in listed}


def serve(
    package: str | Path, host: str = "127.0.0.1", port: int = 8080, limits: Limits | None = None
) -> None:
    """Load a package and serve it until stopped.

    There is no authentication: bind to another address than loopback only behind something that has it.

    Args:
        package: Folder of a package.
        host: Address to bind to.
        port: TCP port, 1 to 65535.
        limits: How large requests may be, and how many are worked on at once.

    Raises:
        BackendUnavailable: FastAPI or uvicorn is not installed.
    """
    try:
        import uvicorn
    except ImportError as error:
        raise BackendUnavailable(
            'the server needs uvicorn. Install it with: pip install "opengem[serve]"'
        ) from error
    predictor = Predictor.load(package, limits)
    connections = 16 * predictor.limits.concurrent  # more are refused with 503 before their body is read
    uvicorn.run(
        create_app(predictor), host=host, port=port, server_header=False, limit_concurrency=connections
    )


class _NoJSONError(ValueError):
    """The body is no JSON."""


async def _read(request: Any, longest: int) -> bytes | None:
    """Return the body, or None as soon as it is seen to be longer than `longest` bytes."""
    declared = request.headers.get("content-length", "0")
    if not declared.isdigit() or int(declared) > longest:
        return None
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > longest:
            return None
    return bytes(body)


def _answer(predictor: Predictor, body: bytes) -> dict[str, Any]:
    return predictor.rank(_parse(body))


def _parse(body: bytes) -> Any:
    try:
        return json.loads(body, parse_constant=_refuse_constant, object_pairs_hook=_unique)
    except RequestError:
        raise
    except (UnicodeDecodeError, RecursionError, json.JSONDecodeError):
        raise _NoJSONError("must be JSON in UTF-8.") from None
    except ValueError:  # a number with too many digits
        raise _NoJSONError("must hold numbers of at most 4,300 digits.") from None


def _refuse_constant(_: str) -> None:
    raise RequestError("request", "must hold no NaN and no Infinity.")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        raise RequestError("request", "must hold each field of an object once.")
    return result
