"""Requests to object stores that fail for a while, or for good."""

import errno

import pytest

from jaxformer.errors import ConfigError, StorageError
from jaxformer.io import attempts
from jaxformer.io.attempts import LONGEST_PAUSE, PATIENCE, attempt, patience


class HTTPClientError(Exception):
    """An error by the name that botocore has for it."""


class NoCredentialsError(Exception):
    """Another one."""


@pytest.fixture
def clock(monkeypatch):
    """Time that passes in pauses alone; the list has the pauses."""
    pauses = []
    monkeypatch.setattr(attempts.time, "sleep", pauses.append)
    monkeypatch.setattr(attempts.time, "monotonic", lambda: sum(pauses))
    monkeypatch.setattr(attempts.random, "uniform", lambda low, high: 1.0)
    return pauses


def failing(error, times):
    left = [error] * times

    def action():
        if left:
            raise left.pop()
        return "done"

    return action


@pytest.mark.parametrize(
    "error",
    [
        ConnectionResetError(),
        TimeoutError(),
        HTTPClientError("closed"),
        OSError(errno.EBUSY, "SlowDown"),
        OSError(errno.EREMOTEIO, "InternalError"),
    ],
)
def test_a_lost_connection_is_tried_again(clock, error):
    assert attempt("s3://b/x", failing(error, 3)) == "done"
    assert clock == [0.5, 1.0, 2.0]


def test_pauses_have_an_end_and_so_has_patience(clock):
    with pytest.raises(StorageError, match=r"^s3://b/x: the connection .* within 60 s \(gone\);"):
        attempt("s3://b/x", failing(ConnectionError("gone"), 100))
    assert max(clock) == LONGEST_PAUSE
    assert 40 < sum(clock) <= 60


def test_a_store_that_tries_again_by_itself_may_take_longer(clock):
    def request():
        clock.append(52.4)
        raise ConnectionError("gone")

    with pytest.raises(StorageError, match="did not come back within 52 s"):
        attempt("gs://b/x", request, seconds=20)
    assert clock == [52.4]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (PermissionError("Access Denied"), r"refuses \(Access Denied\); use credentials"),
        (NoCredentialsError("Unable to locate"), r"no credentials \(Unable to locate\); set"),
        (OSError(errno.EINVAL, "InvalidArgument"), "refuses"),
    ],
)
def test_a_refusal_is_one_sentence_at_once(clock, error, words):
    with pytest.raises(StorageError, match=f"^gs://b/x: .*{words}") as raised:
        attempt("gs://b/x", failing(error, 1))
    assert "\n" not in str(raised.value)
    assert clock == []


def test_what_is_not_there_is_said_as_on_a_disk(clock):
    with pytest.raises(FileNotFoundError):
        attempt("s3://b/x", failing(FileNotFoundError("x"), 1))
    assert clock == []


def test_a_store_out_of_reach_is_no_damaged_file():
    assert not issubclass(StorageError, OSError | ValueError)


@pytest.mark.parametrize("text", ["soon", "-1", "nan", "inf"])
def test_patience_is_a_number_of_seconds(monkeypatch, text):
    monkeypatch.setenv(PATIENCE, text)
    with pytest.raises(ConfigError, match=f"^{PATIENCE} = '{text}'"):
        patience()


def test_patience_is_chosen(monkeypatch, clock):
    monkeypatch.setenv(PATIENCE, "2")
    with pytest.raises(StorageError, match="within 2 s"):
        attempt("s3://b/x", failing(ConnectionError("gone"), 100))
    assert clock == [0.5, 1.0]
