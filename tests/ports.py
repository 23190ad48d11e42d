"""Free ports of this machine, for servers and jobs of several processes."""

import socket


def free_port() -> int:
    """A port that nobody listens on, until somebody else takes it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def free_address() -> str:
    """The address of a free port, as a job's coordinator has."""
    return f"localhost:{free_port()}"
