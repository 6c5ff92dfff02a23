"""Connections that a slow or idle client cannot hold: what uvicorn leaves to a proxy in front of it."""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 10.0
"""Time in which a connection must bring the whole head of a request."""

CONNECTIONS = 1_000
"""Connections that one process holds open at once."""

_BODY = b'{"error": {"field": "", "message": "is busy. Try again."}}'
_BUSY = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\n"
    b"connection: close\r\ncontent-length: %d\r\n\r\n%b" % (len(_BODY), _BODY)
)


class GuardedConnection(H11Protocol):
    """An HTTP/1.1 connection that is closed when no head of a request arrives, or nobody takes the answer.

    The body has its own time in the application; between requests uvicorn's keep-alive time holds.
    """

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Take a connection, or refuse it with 503 where there are too many."""
        super().connection_made(transport)
        if len(self.connections) > CONNECTIONS:
            transport.write(_BUSY)
            transport.close()
            return
        self._timer = self.loop.call_later(HEAD_SECONDS, self._give_up)

    def data_received(self, data: bytes) -> None:
        """Take bytes; the clock of the head runs from its first byte until it is whole."""
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_timer()
        elif self._timer is None:
            self._timer = self.loop.call_later(HEAD_SECONDS, self._give_up)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._stop_timer()
        super().connection_lost(exc)

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection; one whose client does not take its answer is cut off."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            super().timeout_keep_alive_handler()

    def _give_up(self) -> None:
        self._timer = None
        self.transport.abort()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
