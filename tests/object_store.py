"""Object stores for tests: a real S3 server on this machine, and one in memory."""

import os
import socket
import subprocess
import sys
import time
import uuid

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

ACCESS = {
    "AWS_ACCESS_KEY_ID": "of-a-test",
    "AWS_SECRET_ACCESS_KEY": "of-a-test",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_REGION": "us-east-1",
}
"""The variables that a client of the server needs, besides its address."""


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
    """An S3 server in a process of its own, which can be stopped.

    Its objects are in its memory, and end with it.
    """

    def __init__(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self.address = f"http://127.0.0.1:{self._port}"
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self._port)]
        self._process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        until = time.monotonic() + 120
        while not self._answers():
            assert self._process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.1)

    def _answers(self):
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", self._port)) == 0

    def close(self):
        self._process.kill()
        self._process.wait()


@pytest.fixture(scope="session")
def s3_server():
    """A server, whose address is in the environment, for the commands that a test starts too."""
    server = Server()
    variables = ACCESS | {"AWS_ENDPOINT_URL": server.address}
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    yield server
    for name, value in before.items():
        if value is None:
            del os.environ[name]
        else:
            os.environ[name] = value
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    server.close()


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
    MemoryStore.store.clear()
    MemoryStore.pseudo_dirs[:] = [""]
