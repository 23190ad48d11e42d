"""Connections between the processes of a job, which detect at once that one of them has died.

When a process dies, collectives fail, but another process may be waiting for something else, such
as the other processes' part of a checkpoint. JAX then notices only when heartbeats are missing,
after minutes. The operating system always closes the connections of a process that dies.
"""

import contextlib
import secrets
import socket
import threading
from collections.abc import Callable
from typing import Any

_KEY = "jaxformer/lifelines"
_ADMISSION_SECONDS, _CONNECT_SECONDS = 20, 3
"""Timeouts in seconds for a process to send its token, and to connect. If a firewall blocks the
connections, only heartbeats detect a loss.
"""
_TOKEN = 32
"""The length of the secret with which a process of this job proves that it belongs to it."""
_BYE = b"."
_KEEPALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 60, "TCP_KEEPCNT": 10}
"""Keeps idle connections alive in routers; gives up far later than heartbeats do."""


class Lifelines:
    """The connections of a process: from the first one, on `host`, to all others.

    `store` is JAX's key-value store of the job. `lost` is called in a thread when the process at
    the other end dies without `release`.
    """

    def __init__(self, store: Any, index: int, host: str, lost: Callable[[], None]):
        self._lost = lost
        self._ends: list[socket.socket] = []
        self._lock = threading.Lock()
        with contextlib.suppress(OSError, RuntimeError, ValueError):
            if index == 0:
                self._listen(store)
            else:
                self._connect(store, host)

    def release(self) -> None:
        """Announces the end of this process, so that the others do not count it as lost."""
        with self._lock:
            for end in self._ends:
                with contextlib.suppress(OSError):
                    end.sendall(_BYE)

    def _listen(self, store: Any) -> None:
        if socket.has_dualstack_ipv6():
            listener = socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
        else:
            listener = socket.create_server(("", 0))
        token = secrets.token_hex(_TOKEN // 2)
        store.key_value_set(_KEY, f"{listener.getsockname()[1]} {token}")
        threading.Thread(target=self._accept, args=(listener, token), daemon=True).start()

    def _accept(self, listener: socket.socket, token: str) -> None:
        while True:
            try:
                end, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._admit, args=(end, token), daemon=True).start()

    def _admit(self, end: socket.socket, token: str) -> None:
        """Watches a connection whose other end sends the token, and closes any other."""
        end.settimeout(_ADMISSION_SECONDS)
        shown = b""
        with contextlib.suppress(OSError):
            while len(shown) < _TOKEN and (part := end.recv(_TOKEN - len(shown))):
                shown += part
        if secrets.compare_digest(shown, token.encode()):
            self._watch(end)
        else:
            end.close()

    def _connect(self, store: Any, host: str) -> None:
        port, token = store.blocking_key_value_get(_KEY, 1000 * _ADMISSION_SECONDS).split()
        end = socket.create_connection((host, int(port)), _CONNECT_SECONDS)
        end.sendall(token.encode())
        threading.Thread(target=self._watch, args=(end,), daemon=True).start()

    def _watch(self, end: socket.socket) -> None:
        """Waits until the other end announces its end, or dies."""
        end.settimeout(None)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE.items():
            if hasattr(socket, name):
                end.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        with self._lock:
            self._ends.append(end)
        try:
            message = end.recv(1)
        except OSError:
            message = b""
        if message != _BYE:
            self._lost()
