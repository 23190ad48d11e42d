"""Where the logs of a run are written: its folder, or a local folder that is uploaded.

Metrics and TensorBoard events are appended to, which object stores do not support. The logs of a
run in an object store are therefore written locally, and changed files are uploaded every half
minute, before each checkpoint completes, and at the end.
"""

import logging
import shutil
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

from jaxformer.checkpoints.run_dir import METRICS_FILE
from jaxformer.config.loggers import WANDB_ID
from jaxformer.errors import StorageError
from jaxformer.io.paths import AnyPath, is_remote
from jaxformer.training.logging.wall_time import WALL_TIME_FILE

INTERVAL = 30.0
"""Seconds between two uploads."""
_log = logging.getLogger(__name__)


class LogFolder:
    """The folder of a run's logs, which is the run's folder unless that is in an object store.

    Args:
        folder: The run's folder.
        continues: Whether this process continues the existing logs, as the first process does.

    Raises:
        StorageError: The store cannot be reached.
    """

    def __init__(self, folder: AnyPath, continues: bool):
        self.path = folder
        self._remote, self._uploaded = None, {}
        if not is_remote(folder):
            return
        self._remote = folder
        self._scratch = Path(tempfile.mkdtemp(prefix="jaxformer-logs-"))
        self.path = self._scratch / folder.name
        self.path.mkdir()
        if continues:
            self._fetch()
        self._pushing, self._stop = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._push_regularly, daemon=True)
        self._thread.start()

    def push(self) -> None:
        """Uploads changed files; does nothing for a local run."""
        if self._remote is None:
            return
        with self._pushing:
            for file in sorted(self.path.rglob("*")):
                if file.is_file() and not file.is_symlink():
                    self._push_file(file)

    def close(self) -> None:
        """Uploads remaining changes and removes the local copies; a lost connection is only a
        warning.
        """
        if self._remote is None:
            return
        self._stop.set()
        self._thread.join()
        try:
            self.push()
        except StorageError as error:
            _log.warning("the last logs of %s are in %s: %s", self._remote, self.path, error)
        else:
            shutil.rmtree(self._scratch, ignore_errors=True)

    def _fetch(self) -> None:
        """Downloads the existing logs."""
        for name in self._remote.files() if self._remote.exists() else ():
            if name.startswith(METRICS_FILE) or name in (WANDB_ID, WALL_TIME_FILE):
                (self._remote / name).get(self.path / name)
                self._uploaded[name] = _version(self.path / name)

    def _push_file(self, file: Path) -> None:
        name = file.relative_to(self.path).as_posix()
        with suppress(FileNotFoundError):  # a logger's temporary file that disappeared
            version = _version(file)
            if self._uploaded.get(name) != version:
                (self._remote / name).put(file)
                self._uploaded[name] = version

    def _push_regularly(self) -> None:
        while not self._stop.wait(INTERVAL):
            try:
                self.push()
            except StorageError as error:
                _log.warning("%s; retrying in %g s", error, INTERVAL)


def _version(file: Path) -> tuple[int, int]:
    """Returns a value that changes when a file is written to."""
    found = file.stat()
    return found.st_size, found.st_mtime_ns
