"""Object stores for tests: a real S3 server on this machine, and one in memory."""

import contextlib
import socket
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from ports import free_port

ACCESS = {
    "AWS_ACCESS_KEY_ID": "of-a-test",
    "AWS_SECRET_ACCESS_KEY": "of-a-test",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_REGION": "us-east-1",
}
"""The variables that a client of the S3 server needs, besides its address."""
CLIENT_VARIABLES = (
    *ACCESS,
    "AWS_ENDPOINT_URL",
    "STORAGE_EMULATOR_HOST",
    "TENSORSTORE_GCS_HTTP_URL",
    "GOOGLE_AUTH_TOKEN_FOR_TESTING",
    "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT",
)
"""The variables through which commands that a test starts find its servers."""


class MemoryStore(MemoryFileSystem):
    """The memory file system of fsspec in place of Google Cloud Storage."""

    protocol = ("gs", "gcs")
    store: dict = {}  # noqa: RUF012 (as the base class has it)
    pseudo_dirs = [""]  # noqa: RUF012

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(str(path).replace("gs://", "memory://", 1))

    def put_file(self, lpath, rpath, **kwargs):
        with open(lpath, "rb") as file:
            self.pipe_file(rpath, file.read())


class Server:
    """A server in a process of its own. Its objects are in its memory, and end with it.

    Args:
        command: Starts it; "PORT" stands for the port.
    """

    def __init__(self, *command):
        self.port = free_port()
        self.address = f"http://127.0.0.1:{self.port}"
        command = [sys.executable, "-m", *(str(self.port) if c == "PORT" else c for c in command)]
        self._process = subprocess.Popen(
            command, cwd=Path(__file__).parent, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        until = time.monotonic() + 120
        while not self._answers():
            assert self._process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.1)

    def _answers(self):
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", self.port)) == 0

    def close(self):
        self._process.kill()
        self._process.wait()


@contextlib.contextmanager
def reached_by(variables, scheme):
    """Sets variables for this process and those that it starts; clients are made anew."""
    fsspec.get_filesystem_class(scheme).clear_instance_cache()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        yield
    fsspec.get_filesystem_class(scheme).clear_instance_cache()


@pytest.fixture(scope="session")
def s3_server():
    """A server that speaks S3's language."""
    server = Server("moto.server", "-H", "127.0.0.1", "-p", "PORT")
    with reached_by(ACCESS | {"AWS_ENDPOINT_URL": server.address}, "s3"):
        yield server
    server.close()


@pytest.fixture(scope="module")
def gcs_server():
    """A server that speaks the language of Google Cloud Storage."""
    at = ("--host", "127.0.0.1", "--port", "PORT", "--in-memory")
    server = Server("gcs_emulator", "start", *at)
    variables = {
        "STORAGE_EMULATOR_HOST": server.address,
        "TENSORSTORE_GCS_HTTP_URL": server.address,
        "GOOGLE_AUTH_TOKEN_FOR_TESTING": "of-a-test",
        "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
    }
    with reached_by(variables, "gs"):
        yield server
    server.close()


@pytest.fixture
def gcs_bucket(gcs_server):
    """The URL of a new bucket on the server."""
    name = f"bucket-{uuid.uuid4().hex[:12]}"
    fsspec.filesystem("gs", project="of-a-test").mkdir(name)
    return f"gs://{name}"


class Proxy:
    """Passes connections on to a server; while `down`, it closes each at once."""

    def __init__(self, target):
        self._target, self.down, self.refused = target, False, 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._open = []
        threading.Thread(target=self._serve, daemon=True).start()

    def cut(self):
        """Closes every connection, and those to come."""
        self.down = True
        for each in self._open:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self._open.clear()

    def close(self):
        self.cut()
        self._listener.close()

    def _serve(self):
        with contextlib.suppress(OSError):  # the listener is closed at the end
            while True:
                client, _ = self._listener.accept()
                if self.down:
                    self.refused += 1
                    client.close()
                    continue
                server = socket.create_connection(self._target)
                self._open += [client, server]
                for pair in ((client, server), (server, client)):
                    threading.Thread(target=self._pass_on, args=pair, daemon=True).start()

    @staticmethod
    def _pass_on(source, sink):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)


@pytest.fixture
def proxy(s3_server):
    """What stands between the clients of a test and the server."""
    found = Proxy(("127.0.0.1", s3_server.port))
    with reached_by({"AWS_ENDPOINT_URL": found.address}, "s3"):
        yield found
        found.close()


@pytest.fixture
def bucket(s3_server):
    """The URL of a new bucket on the server."""
    name = f"bucket-{uuid.uuid4().hex[:12]}"
    fsspec.filesystem("s3").mkdir(name)
    return f"s3://{name}"


@pytest.fixture
def memory_bucket(monkeypatch):
    """The URL of a new bucket in memory: gs://, without a server."""
    monkeypatch.setattr("jaxformer.io.paths.SCHEMES", {"gs": "fsspec", "s3": "s3fs"})
    for scheme in ("gs", "gcs"):
        fsspec.register_implementation(scheme, MemoryStore, clobber=True)
    name = f"bucket-{uuid.uuid4().hex[:12]}"
    fsspec.filesystem("gs").mkdir(f"/{name}")
    yield f"gs://{name}"
    for scheme in ("gs", "gcs"):
        sys.modules["fsspec.registry"]._registry.pop(scheme)
    MemoryStore.store.clear()
    MemoryStore.pseudo_dirs[:] = [""]
