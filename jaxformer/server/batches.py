"""Generates the texts of many requests in batches, in a separate thread of the server."""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.errors import ConfigError, DataError
from jaxformer.generation.api import build_engine
from jaxformer.generation.config import GenerationConfig
from jaxformer.generation.engine import row_keys
from jaxformer.generation.inputs import bucket, prepare_inputs
from jaxformer.generation.text_stream import TextStream
from jaxformer.generation.tokens import READ_EVERY, Part, stream_tokens
from jaxformer.hub.inputs import padded_prompts
from jaxformer.pretrained.model import Pretrained


class Busy(RuntimeError):
    """Too many texts are waiting."""


@dataclass(frozen=True)
class Piece:
    """The part of a text that was generated since the previous piece."""

    text: str
    tokens: tuple[int, ...]
    log_probs: tuple[float, ...]
    finish_reason: str | None = None
    """"stop" (an end token or a stop string), "length" or "timeout"; None if more follows."""


@dataclass(eq=False)
class TextRequest:
    """A request for one text."""

    tokens: Sequence[int]
    """The prompt."""
    config: GenerationConfig
    """The options of the text."""
    deliver: Callable[[Piece | Exception], None]
    """Called in the batcher's thread with each piece, or with an error that ends the text."""
    deadline: float
    """The `time.monotonic()` at which generation ends."""
    row: int = 0
    """The index among the texts of a prompt, which share a seed."""
    cancelled: bool = False
    """Whether the client no longer waits for the text."""
    _stream: TextStream | None = field(default=None, init=False)
    _left: int = field(default=0, init=False)

    def start(self, stream: TextStream) -> None:
        """Starts the text."""
        self._stream, self._left = stream, self.config.max_new_tokens

    @property
    def finished(self) -> bool:
        """Whether generation has ended."""
        return self._left == 0 or self.cancelled

    def push(self, part: Part) -> None:
        """Delivers the text of new tokens, with the reason if the text ends."""
        if self.finished:
            return
        tokens = part.tokens[: self._left]
        self._left -= len(tokens)
        text = self._stream.push(tokens)
        reason = None
        if self._stream.finished or (len(tokens) and tokens[-1] in self.config.end_tokens):
            reason = "stop"
        elif not self._left:
            reason = "length"
        elif time.monotonic() > self.deadline:
            reason = "timeout"
        if reason is not None:
            text, self._left = text + self._stream.flush(), 0
        if reason is not None or len(tokens):
            log_probs = tuple(map(float, part.log_probs[: len(tokens)]))
            self.deliver(Piece(text, tuple(map(int, tokens)), log_probs, reason))


class Batcher:
    """Runs waiting requests in batches.

    Requests with the same sampling options share a batch; their lengths, seeds and stop strings may
    differ. A batch is finished before the next one starts.
    """

    def __init__(self, pretrained: Pretrained, batch_size: int, most_waiting: int):
        """Starts the thread; both numbers count texts."""
        self._pretrained, self._tokenizer = pretrained, pretrained.prompt_encoder.tokenizer
        self._engine = build_engine(pretrained, GenerationConfig())
        self._batch_size, self._most_waiting = batch_size, most_waiting
        self._waiting: deque[TextRequest] = deque()
        self._changed = threading.Condition()
        self._running: list[TextRequest] = []
        self._closed = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def submit(self, requests: Sequence[TextRequest]) -> None:
        """Queues requests; raises Busy if there are too many."""
        with self._changed:
            if len(self._waiting) + len(requests) > self._most_waiting:
                raise Busy(f"{len(self._waiting)} texts are waiting: try again later")
            self._waiting.extend(requests)
            self._changed.notify()

    def close(self) -> None:
        """Stops the thread and the texts being generated."""
        with self._changed:
            self._closed = True
            for request in self._running:
                request.cancelled = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while (batch := self._next()) is not None:
            self._generate(batch)

    def _next(self) -> list[TextRequest] | None:
        """Waits for requests, and takes those that can share a batch with the first one."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            if self._closed:
                return None
            batch, others = [], deque()
            for request in self._waiting:
                if request.cancelled:
                    continue
                if len(batch) < self._batch_size and self._fits([*batch, request]):
                    batch.append(request)
                else:
                    others.append(request)
            self._waiting, self._running = others, batch
            return batch

    def _fits(self, batch: Sequence[TextRequest]) -> bool:
        """Whether requests can share a batch: equal options, and room for the longest answer."""
        if any(_sampling(each.config) != _sampling(batch[0].config) for each in batch):
            return False
        if len(batch) == 1 or self._engine.max_length is None:
            return True
        longest = max(len(each.tokens) for each in batch)
        return longest + max(each.config.max_new_tokens for each in batch) <= (
            self._engine.max_length
        )

    def _generate(self, batch: Sequence[TextRequest]) -> None:
        """Generates the texts of a batch, and delivers errors."""
        try:
            self._stream(batch)
        except (ConfigError, DataError) as error:
            if len(batch) == 1:
                batch[0].deliver(error)
            else:  # prompts are checked first, so nothing has been delivered yet
                for request in batch:
                    self._generate([request])
        except Exception as error:  # the server must keep running
            for request in batch:
                request.deliver(error)

    def _stream(self, batch: Sequence[TextRequest]) -> None:
        """Delivers the texts of a batch while they are generated."""
        if not batch:
            return
        for request in batch:
            request.start(TextStream(self._tokenizer, request.config.stop_strings))
        # A program is compiled for each number of rows, so use only powers of two.
        count = bucket(len(batch), 1)
        rows = [*batch, *[batch[0]] * (count - len(batch))]
        ids = padded_prompts([list(row.tokens) for row in rows], 0, left=False)
        _, prompts, encoder_outputs = prepare_inputs(self._pretrained, ids)
        config = replace(
            batch[0].config,
            max_new_tokens=max(each.config.max_new_tokens for each in batch),
            stop_strings=(),
        )
        keys = [row_keys(row.config.seed, np.array([row.row])) for row in rows]
        fillers = [True] * (count - len(batch))
        stream = stream_tokens(
            self._engine,
            prompts,
            config,
            jax.tree.map(lambda *each: jnp.concatenate(each), *keys),
            encoder_outputs=encoder_outputs,
            every=min(READ_EVERY, config.max_new_tokens),
            stopped=lambda: np.array([each.finished for each in batch] + fillers),
        )
        for parts in stream:
            for request, part in zip(batch, parts, strict=False):
                request.push(part)
            if all(request.finished for request in batch):
                return


def _sampling(config: GenerationConfig) -> GenerationConfig:
    """Returns the options that the requests of a batch must share."""
    # A forced last token depends on the length.
    most = 1 << 30 if config.forced_eos_token_id is None else config.max_new_tokens
    return replace(config, max_new_tokens=most, seed=0, stop_strings=())
