"""The address of the server, bound before the model is loaded so that a port in use fails early."""

import contextlib
import errno
import os
import socket
from collections.abc import Iterator

from jaxformer.errors import ConfigError

_WAITING_CONNECTIONS = 2048


@contextlib.contextmanager
def bound(host: str, port: int) -> Iterator[list[socket.socket]]:
    """Binds sockets to the addresses of a host, and closes them at the end.

    A name such as "localhost" may have several addresses. Clients cannot connect before `listen`.

    Raises:
        ConfigError: The host is not this machine, or the port is in use or reserved.
    """
    with contextlib.ExitStack() as opened:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        except (OSError, UnicodeError) as error:
            raise ConfigError(f"--host {host}: no address is known for this name") from error
        sockets, missing = [], None
        for family, kind, protocol, _, address in found:
            try:
                each = opened.enter_context(socket.socket(family, kind, protocol))
                each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:  # IPv4 has a separate socket
                    each.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                each.bind(address)
            except OSError as error:
                if error.errno not in {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}:
                    raise _refused(host, port, error) from error
                missing = error  # "localhost" has an IPv6 address even on machines without IPv6
                continue
            sockets.append(each)
        if not sockets:
            raise ConfigError(f"--host {host}: must be an address of this machine") from missing
        yield sockets


def listen(sockets: list[socket.socket]) -> None:
    """Lets clients connect; raises a ConfigError if another process took the port meanwhile."""
    for each in sockets:
        try:
            each.listen(_WAITING_CONNECTIONS)
        except OSError as error:
            raise _refused(*each.getsockname()[:2], error) from error


def _refused(host: str, port: int, error: OSError) -> ConfigError:
    why = "is in use" if error.errno == errno.EADDRINUSE else os.strerror(error.errno or 0)
    return ConfigError(f"--port {port}: {why} on {host}; choose another one")
