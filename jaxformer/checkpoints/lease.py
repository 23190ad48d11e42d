"""The lock of a run in an object store: a lease that its owner keeps renewing.

Object stores have no locks. The lock is the object with the highest number below ``RUN/.lock``. A
store creates an object of a given name only once, so if several processes compete for the next
number, exactly one gets it. The owner rewrites its object every few seconds; if it stops doing so,
another process takes the next number. An owner that was merely slow finds the higher number and
stops (`Lease.check`).
"""

import json
import logging
import os
import socket
import threading
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

from jaxformer.errors import ConfigError, RunError, StorageError
from jaxformer.io.attempts import attempt
from jaxformer.io.remote import RemotePath

BEAT = 5.0
"""Seconds between two renewals."""
EXPIRY = 20.0
"""Seconds without a renewal after which the owner counts as dead."""
_POLL = 0.5

_log = logging.getLogger(__name__)
_held: set[str] = set()
"""The leases held by this process."""


class Lease:
    """The right to write to a run's folder, renewed in the background until it is closed.

    The lock of a killed process expires after `EXPIRY` seconds, or immediately if that process ran
    on this machine. A lock that is renewed in the meantime belongs to a live process.

    Raises:
        ConfigError: Another process is training in the folder.
        StorageError: The store cannot be reached.
    """

    def __init__(self, folder: RemotePath):
        self._folder, self._home = folder, folder / ".lock"
        self._owner = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "machine": _machine(),
            "id": uuid.uuid4().hex,
        }
        self._beats, self._lost = 0, False
        _held.add(self._owner["id"])
        try:
            self._number = self._next_number()
        except BaseException:
            _held.discard(self._owner["id"])
            raise
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._renew, daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Checks that the store still names this process as the owner of the lease."""
        with suppress(StorageError):  # writing would fail as well
            self._look()
        if self._lost:
            raise RunError(
                f"stopped: {self._folder} was removed or is now locked by another process, perhaps "
                f"because this one was halted or disconnected for more than {EXPIRY:g} s and could "
                "not renew its lock; it stops writing there, and the checkpoints are kept"
            )

    def close(self) -> None:
        """Releases the lease."""
        self._stop.set()
        self._thread.join()
        _held.discard(self._owner["id"])
        with suppress(StorageError):  # then it expires
            for number in self._numbers():
                if number <= self._number:
                    self._path(number).unlink(missing_ok=True)

    def _next_number(self) -> int:
        """Returns the number of the new lock once no other owner is alive."""
        while True:
            number = max(self._numbers(), default=0)
            owner = self._read(number) if number else None
            if owner is not None and not self._is_dead(number, owner):
                raise ConfigError(
                    f"another process is training in {self._folder} (process {owner.get('pid')} on "
                    f"{owner.get('host')}): wait for it, or name another folder with --run-dir"
                )
            if self._create(number + 1):
                return number + 1

    def _is_dead(self, number: int, owner: dict[str, Any]) -> bool:
        """Whether the owner's process ended on this machine, or does not renew the lock."""
        if owner.get("machine") == _machine() and not _is_alive(owner):
            return True
        _log.warning(
            "%s is locked by process %s on %s: waiting up to %g s to see whether it is alive",
            self._folder,
            owner.get("pid"),
            owner.get("host"),
            EXPIRY,
        )
        until = time.monotonic() + EXPIRY
        while time.monotonic() < until:
            time.sleep(_POLL)
            now = self._read(number)
            if now is None:  # it was released
                return True
            if now != owner:
                return False
        return True

    def _renew(self) -> None:
        while not self._stop.wait(BEAT):
            with suppress(StorageError):  # others fail too, or the next renewal succeeds
                self._look()
                if self._lost:
                    return
                self._beats += 1
                self._path(self._number).write_bytes(self._contents())

    def _look(self) -> None:
        if max(self._numbers(), default=0) != self._number:
            self._lost = True

    def _create(self, number: int) -> bool:
        """Tries to create the lock with a number; returns whether this process owns it."""
        path, data = self._path(number), self._contents()
        # The response to an earlier attempt may have been lost, and in some S3-compatible stores
        # the last of several creators wins, so read back the owner.
        with suppress(FileExistsError):
            attempt(path, lambda: path.store.pipe_file(str(path), data, mode="create"))
            time.sleep(_POLL)
        return (self._read(number) or {}).get("id") == self._owner["id"]

    def _numbers(self) -> list[int]:
        return [int(name) for name in self._home.files() if name.isdecimal()]

    def _path(self, number: int) -> RemotePath:
        return self._home / f"{number:06d}"

    def _contents(self) -> bytes:
        return json.dumps(self._owner | {"beats": self._beats}).encode()

    def _read(self, number: int) -> dict[str, Any] | None:
        """Returns the record that the owner wrote, or None if the object is gone."""
        try:
            found = json.loads(self._path(number).read_bytes())
        except FileNotFoundError:
            return None
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}


def _machine() -> str:
    """Identifies the machine or container, since process ids are only unique within one."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    return uuid.uuid4().hex  # unknown: assume that no other process shares this machine


def _is_alive(owner: dict[str, Any]) -> bool:
    """Whether an owner on this machine still has its lease."""
    pid = owner.get("pid")
    if pid == os.getpid():  # a reused process id, unless it is this very process
        return owner.get("id") in _held
    if not isinstance(pid, int):
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # it belongs to another user
    return True
