"""Tokenises in several processes, each with a separate tokenizer.

The threads of the tokenizers library share one cache and one interpreter, which limits their
number. Each process is a new interpreter: a fork of one that runs JAX can hang.
"""

import os
import pickle
import queue
import signal
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import numpy as np

from jaxformer.data.tokenizers.specs import Tokenizer, load_tokenizer
from jaxformer.errors import DataError

T = TypeVar("T")
_AHEAD = 3
_SERVE = f"import sys; from {__name__} import serve; serve(sys.argv[1])"


class TokenizerPool:
    """Processes that tokenise, each with a copy of a tokenizer and about 200 MB of memory."""

    def __init__(self, tokenizer: Tokenizer, num_processes: int):
        self._tokenizer, self._size = tokenizer, num_processes

    def __enter__(self) -> "TokenizerPool":
        self._folder = tempfile.TemporaryDirectory(prefix="jaxformer-")
        self._tokenizer.save(self._folder.name)
        self._processes = [_start(self._folder.name) for _ in range(self._size)]
        self._idle: queue.SimpleQueue = queue.SimpleQueue()
        for process in self._processes:
            self._idle.put(process)
        self._threads = ThreadPoolExecutor(self._size)
        return self

    def map(
        self, batches: Iterable[T], texts: Callable[[T], Sequence[str]]
    ) -> Iterator[tuple[T, list[np.ndarray]]]:
        """Tokenises batches in parallel, a few of them ahead of the one that is read."""
        pending: deque[tuple[T, Future]] = deque()
        for batch in batches:
            pending.append((batch, self._threads.submit(self._encode, texts(batch))))
            if len(pending) > _AHEAD * self._size:
                first, future = pending.popleft()
                yield first, future.result()
        for batch, future in pending:
            yield batch, future.result()

    def __exit__(self, *exception) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        for process in self._processes:
            process.kill()
        self._threads.shutdown()
        for process in self._processes:
            process.communicate()
        self._folder.cleanup()

    def _encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        process = self._idle.get()
        try:
            pickle.dump(list(texts), process.stdin, pickle.HIGHEST_PROTOCOL)
            process.stdin.flush()
            ids, answer = pickle.load(process.stdout)
        except (EOFError, OSError, pickle.UnpicklingError) as error:
            raise DataError(
                f"a process that tokenises has ended with status {process.wait()}: if there was "
                "too little memory, lower data.corpus.num_proc"
            ) from error
        finally:
            self._idle.put(process)
        if isinstance(answer, str):
            raise DataError(answer)
        return np.split(ids, np.cumsum(answer)[:-1])


def num_cores() -> int:
    """Returns the number of CPU cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        return os.cpu_count() or 1


def _start(folder: str) -> subprocess.Popen:
    # The training script is not imported, so it needs no `if __name__ == "__main__"`.
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
        "TOKENIZERS_PARALLELISM": "false",
    }
    return subprocess.Popen(
        [sys.executable, "-c", _SERVE, folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
    )


def serve(folder: str) -> None:
    """Answers lists of texts from the standard input with their ids, until the input ends.

    The answer has the ids of all texts, and their lengths or the error of one of them.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the training process ends this one
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # the output of a library must not come between the answers
    tokenizer = load_tokenizer(folder)
    while True:
        try:
            texts = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        joined = np.empty(0, np.int32)
        try:
            rows = tokenizer.encode_batch(texts)
            joined = np.concatenate([joined, *rows])
            answer = [len(row) for row in rows]
        except DataError as error:
            answer = str(error)
        pickle.dump((joined, answer), answers, pickle.HIGHEST_PROTOCOL)
        answers.flush()
