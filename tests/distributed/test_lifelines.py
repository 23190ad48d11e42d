"""A process learns at once that another one has died, and only that."""

import contextlib
import socket
import threading
import time

import pytest

from jaxformer.distributed.lifelines import Lifelines

SOON, NEVER = 20, 0.2


class Store:
    """JAX's key-value store, of this process alone."""

    def __init__(self):
        self.values = {}
        self.written = threading.Condition()

    def key_value_set(self, key, value):
        with self.written:
            self.values[key] = value
            self.written.notify_all()

    def blocking_key_value_get(self, key, milliseconds):
        with self.written:
            if not self.written.wait_for(lambda: key in self.values, milliseconds / 1000):
                raise RuntimeError("DEADLINE_EXCEEDED")
            return self.values[key]


@pytest.fixture
def store():
    return Store()


def first(store):
    """The lifelines of process 0, and what is set when another one dies."""
    lost = threading.Event()
    return Lifelines(store, 0, "localhost", lost.set), lost


@contextlib.contextmanager
def other(store, token=None):
    """The connection of another process, which ends as the system ends it when one dies."""
    port, right = store.values["jaxformer/lifelines"].split()
    with socket.create_connection(("localhost", int(port))) as end:
        end.sendall((right if token is None else token).encode())
        yield end


def test_a_process_that_dies_is_lost(store):
    _, lost = first(store)
    with other(store), other(store):
        assert not lost.wait(NEVER)
    assert lost.wait(SOON)


def test_a_process_that_says_goodbye_is_not_lost(store):
    _, lost = first(store)
    with other(store) as end:
        end.sendall(b".")
    assert not lost.wait(NEVER)


@pytest.mark.parametrize("token", ["", "x", "x" * 32, "é" * 16])
def test_a_stranger_that_comes_and_goes_is_nothing(store, token):
    """A scanner of ports must not end a job."""
    _, lost = first(store)
    with other(store, token):
        pass
    assert not lost.wait(NEVER)


@pytest.fixture
def door(store):
    """A first process, as another one sees it."""
    with socket.create_server(("localhost", 0)) as found:
        found.settimeout(SOON)
        store.key_value_set("jaxformer/lifelines", f"{found.getsockname()[1]} {'t' * 32}")
        yield found


@pytest.mark.parametrize(("last", "is_lost"), [(b"", True), (b".", False)])
def test_the_others_learn_of_the_first_process(store, door, last, is_lost):
    lost = threading.Event()
    Lifelines(store, 1, "localhost", lost.set)
    end, _ = door.accept()
    with end:
        assert end.recv(32, socket.MSG_WAITALL) == b"t" * 32
        assert not lost.wait(NEVER)
        end.sendall(last)
    assert lost.wait(SOON if is_lost else NEVER) is is_lost


def test_goodbye_reaches_both_sides(store):
    zero, zero_lost = first(store)
    one_lost = threading.Event()
    one = Lifelines(store, 1, "localhost", one_lost.set)
    end = time.monotonic() + SOON
    while not (zero._ends and one._ends):
        assert time.monotonic() < end
        time.sleep(0.01)
    one.release()
    zero.release()
    for each in (one, zero):
        each._ends[0].shutdown(socket.SHUT_RDWR)
    assert not zero_lost.wait(NEVER)
    assert not one_lost.is_set()


def test_without_connections_there_are_still_the_heartbeats(store, monkeypatch):
    lost = threading.Event()
    monkeypatch.setattr("jaxformer.distributed.lifelines._ADMISSION_SECONDS", 0.1)
    Lifelines(store, 1, "localhost", lost.set)  # the first process publishes nothing
    store.key_value_set("jaxformer/lifelines", "1 t")  # nobody listens there
    Lifelines(store, 1, "localhost", lost.set)
    assert not lost.wait(NEVER * 2)
