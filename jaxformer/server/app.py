"""The HTTP interface of the server: OpenAI's models, completions and chat completions."""

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from jaxformer.errors import ArgumentError, DataError
from jaxformer.pretrained.model import Pretrained
from jaxformer.server.batches import Batcher, Busy, Piece, TextRequest
from jaxformer.server.requests import Body, read_body

LOOPBACK = ("127.0.0.1", "localhost")
"""The addresses that only this machine can reach."""
_HUNG_UP = 499
"""The status that servers log for a request whose client has disconnected."""
_BODY_SECONDS = 30
"""Seconds within which a body must arrive."""
_POLL_SECONDS = 0.2
"""Seconds between two checks whether a client has disconnected."""


@dataclass(frozen=True)
class Limits:
    """The limits of a request."""

    max_tokens: int = 512
    """The maximum number of tokens of a generated text."""
    seconds: float = 120.0
    """Seconds after which a text ends."""
    body_bytes: int = 1 << 20
    """The maximum size of a body."""


class Server:
    """The HTTP handlers of a model; `name` identifies it to clients."""

    def __init__(self, pretrained: Pretrained, name: str, batcher: Batcher, limits: Limits):
        self._pretrained, self._batcher, self._limits = pretrained, batcher, limits
        self._name, self._started = name, int(time.time())

    def app(self, local: bool) -> Starlette:
        """Returns the application; `local` accepts only clients on this machine."""
        routes = [
            Route("/health", lambda request: JSONResponse({"status": "ok"})),
            Route("/v1/models", self._models),
            Route("/v1/models/{name:path}", self._models),
            Route("/v1/completions", partial(self._answer, chat=False), methods=["POST"]),
            Route("/v1/chat/completions", partial(self._answer, chat=True), methods=["POST"]),
        ]
        handlers = {HTTPException: _refused}
        # A web page in a browser can reach this machine under another host name.
        hosts = list(LOOPBACK) if local else ["*"]
        middleware = [Middleware(TrustedHostMiddleware, allowed_hosts=hosts)]
        return Starlette(routes=routes, middleware=middleware, exception_handlers=handlers)

    async def _models(self, request: Request) -> Response:
        own = {"id": self._name, "object": "model", "created": self._started, "owned_by": "user"}
        name = request.path_params.get("name")
        if name is None:
            return JSONResponse({"object": "list", "data": [own]})
        self._check_model({"model": name})
        return JSONResponse(own)

    async def _answer(self, request: Request, chat: bool) -> Response:
        try:
            return await self._answered(request, chat)
        except ClientDisconnect:
            return Response(status_code=_HUNG_UP)

    async def _answered(self, request: Request, chat: bool) -> Response:
        body = await self._read(request)
        self._check_model(body)
        arguments = body, self._pretrained, chat, self._limits.max_tokens
        try:
            wanted = await asyncio.to_thread(read_body, *arguments)
        except (ArgumentError, DataError) as error:
            raise HTTPException(400, str(error)) from error
        texts = _Texts(wanted, self._limits.seconds)
        try:
            self._batcher.submit(texts.requests)
        except Busy as error:
            raise HTTPException(503, str(error), headers={"Retry-After": "1"}) from error
        writer = _Writer(wanted, self._pretrained, self._name, chat)
        if wanted.stream:
            return StreamingResponse(writer.events(texts), media_type="text/event-stream")
        pieces = [piece async for piece in texts.pieces(request)]
        return JSONResponse(writer.whole(pieces))

    async def _read(self, request: Request) -> dict[str, Any]:
        """Returns the JSON object in the body of a request."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip()
        if kind != "application/json":  # a web page may send other types to any server
            raise HTTPException(415, f"Content-Type {kind!r}: must be application/json")
        most, data = self._limits.body_bytes, bytearray()
        try:
            async with asyncio.timeout(_BODY_SECONDS):
                async for chunk in request.stream():
                    data += chunk
                    if len(data) > most:
                        raise HTTPException(413, f"the body: must be {most:,} bytes at most")
            body = json.loads(data)
        except TimeoutError as error:
            raise HTTPException(408, "the body: did not arrive in time") from error
        except (ValueError, RecursionError) as error:
            raise HTTPException(400, f"the body: must be JSON: {error}") from error
        if not isinstance(body, dict):
            raise HTTPException(400, "the body: must be a JSON object")
        return body

    def _check_model(self, body: dict[str, Any]) -> None:
        if body.get("model", self._name) != self._name:
            raise HTTPException(404, f"model = {body['model']!r}: must be {self._name!r}")


class _Texts:
    """The texts of a request, while they are generated; each ends after at most `seconds`."""

    def __init__(self, body: Body, seconds: float):
        self._loop, self._queue = asyncio.get_running_loop(), asyncio.Queue()
        pairs = zip(body.prompts, body.configs, strict=True)
        numbered = [(*pair, row) for pair in pairs for row in range(body.count)]
        deadline = time.monotonic() + seconds
        self.requests = [
            TextRequest(tokens, config, self._receiver(index), deadline, row)
            for index, (tokens, config, row) in enumerate(numbered)
        ]

    def _receiver(self, index: int):
        def deliver(piece: Piece | Exception) -> None:
            self._loop.call_soon_threadsafe(self._queue.put_nowait, (index, piece))

        return deliver

    async def pieces(self, request: Request | None = None) -> AsyncIterator[tuple[int, Piece]]:
        """Yields the index of a text and its next piece, until all texts end.

        `request` is given if nothing else detects that its client disconnects.
        """
        left = len(self.requests)
        try:
            while left:
                try:
                    index, piece = await asyncio.wait_for(self._queue.get(), _POLL_SECONDS)
                except TimeoutError:
                    if request is not None and await request.is_disconnected():
                        raise ClientDisconnect from None
                    continue
                if isinstance(piece, Exception):
                    known = isinstance(piece, ArgumentError | DataError)
                    raise HTTPException(400 if known else 500, str(piece)) from piece
                left -= piece.finish_reason is not None
                yield index, piece
        finally:
            for each in self.requests:
                each.cancelled = True


class _Writer:
    """Converts pieces of texts to OpenAI's response objects, for completions or a chat."""

    def __init__(self, body: Body, pretrained: Pretrained, name: str, chat: bool):
        self._body, self._chat = body, chat
        self._tokenizer = pretrained.prompt_encoder.tokenizer
        self._head = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": name,
        }

    def whole(self, pieces: list[tuple[int, Piece]]) -> dict[str, Any]:
        """Returns the response without streaming."""
        joined: dict[int, Piece] = {}
        for index, piece in pieces:
            if before := joined.get(index):
                piece = replace(
                    piece,
                    text=before.text + piece.text,
                    tokens=before.tokens + piece.tokens,
                    log_probs=before.log_probs + piece.log_probs,
                )
            joined[index] = piece
        if any(piece.finish_reason == "timeout" for piece in joined.values()):
            raise HTTPException(504, "the request timed out: request fewer tokens")
        kind = "chat.completion" if self._chat else "text_completion"
        choices = [self._choice(index, joined[index], "message") for index in sorted(joined)]
        usage = self._usage(sum(len(piece.tokens) for piece in joined.values()))
        return self._head | {"object": kind, "choices": choices, "usage": usage}

    async def events(self, texts: _Texts) -> AsyncIterator[str]:
        """Yields the events of a stream."""
        kind = "chat.completion.chunk" if self._chat else "text_completion"
        count = 0
        try:
            async for index, piece in texts.pieces():
                count += len(piece.tokens)
                if piece.finish_reason == "timeout":
                    raise HTTPException(504, "the request timed out")
                yield _event(
                    self._head | {"object": kind, "choices": [self._choice(index, piece, "delta")]}
                )
            if self._body.include_usage:
                yield _event(
                    self._head | {"object": kind, "choices": [], "usage": self._usage(count)}
                )
            yield "data: [DONE]\n\n"
        except HTTPException as error:  # the status was already sent
            yield _event(_error(error))

    def _choice(self, index: int, piece: Piece, name: str) -> dict[str, Any]:
        choice = {"index": index, "finish_reason": piece.finish_reason, "logprobs": None}
        names = [self._tokenizer.decode([id_], skip_special_tokens=False) for id_ in piece.tokens]
        if not self._chat:
            if self._body.log_probs:
                choice["logprobs"] = {"tokens": names, "token_logprobs": list(piece.log_probs)}
            return choice | {"text": piece.text}
        if self._body.log_probs:
            entries = [
                {"token": token, "logprob": value, "bytes": None, "top_logprobs": []}
                for token, value in zip(names, piece.log_probs, strict=True)
            ]
            choice["logprobs"] = {"content": entries}
        return choice | {name: {"role": "assistant", "content": piece.text}}

    def _usage(self, count: int) -> dict[str, int]:
        read = sum(map(len, self._body.prompts))
        return {"prompt_tokens": read, "completion_tokens": count, "total_tokens": read + count}


def _event(value: dict[str, Any]) -> str:
    return f"data: {json.dumps(value, ensure_ascii=False)}\n\n"


def _error(error: HTTPException) -> dict[str, Any]:
    kind = "invalid_request_error" if error.status_code < 500 else "server_error"
    return {"error": {"message": error.detail, "type": kind, "param": None, "code": None}}


async def _refused(request: Request, error: HTTPException) -> Response:
    return JSONResponse(_error(error), error.status_code, headers=error.headers)
