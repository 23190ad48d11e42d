"""``jaxformer serve DIR``: a small server with OpenAI's interface."""

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxformer.cli.options import Dtype, ModelChoice
from jaxformer.errors import ConfigError
from jaxformer.extras import optional_module
from jaxformer.generation.inputs import check_generates, reads_images
from jaxformer.pretrained.auto import load
from jaxformer.pretrained.dialogues import dialogue_of
from jaxformer.pretrained.model import KernelDtype, with_stored_compute_dtype
from jaxformer.server.addresses import bound, listen
from jaxformer.server.batches import Batcher


@dataclass(frozen=True)
class Serve(ModelChoice):
    """Serves a model over HTTP with OpenAI's interface, for trying it out.

    Waiting requests with the same sampling options share a batch, which is finished before the next
    one begins; the cache is not paged. For production, export the model and serve it with vLLM,
    SGLang or llama.cpp.
    """

    port: int = 8000
    """The port."""
    host: str = "127.0.0.1"
    """The address to listen on. The default is only reachable from this machine; the server has no
    authentication.
    """
    name: str | None = None
    """The name of the model for clients (None: the last part of its folder)."""
    batch_size: int = 16
    """The maximum number of texts that are generated at once."""
    max_waiting: int = 256
    """The maximum number of waiting texts; further requests are refused with status 503."""
    max_tokens: int = 512
    """The maximum number of new tokens of a text."""
    max_seconds: float = 120.0
    """Seconds after which a text ends, including the time spent waiting."""
    max_body: int = 1 << 20
    """The maximum size of a request in bytes."""
    dtype: Dtype | None = None
    """The dtype of the weights and the computation, which uses bfloat16 for float16 (None: the
    dtype that the weights are saved in).
    """
    weights: KernelDtype | None = None
    """The dtype of the kernels (None: that of the weights). int8 takes half the memory of bfloat16.
    """


def serve(options: Serve) -> None:
    """Runs the server until it is interrupted."""
    for name in ("batch_size", "max_waiting", "max_tokens", "max_seconds", "max_body"):
        if getattr(options, name) <= 0:
            option = f"--{name.replace('_', '-')}"
            raise ConfigError(f"{option} {getattr(options, name)}: must be above 0")
    if not 0 < options.port < 1 << 16:
        raise ConfigError(f"--port {options.port}: must be from 1 to 65535")
    uvicorn: Any = optional_module("uvicorn", "jaxformer serve")
    from jaxformer.server.app import LOOPBACK, Limits, Server  # requires the extra serve

    with bound(options.host, options.port) as sockets:
        keywords = {"dtype": options.dtype, "weights": options.weights}
        model = with_stored_compute_dtype(load(options.folder, **keywords, **options.how))
        check_generates(model.config)
        if reads_images(model):
            raise ConfigError(
                f"serve: {options.folder} reads images: must be a model that reads text"
            )
        name = options.name or Path(options.folder).name
        limits = Limits(options.max_tokens, options.max_seconds, options.max_body)
        batcher = Batcher(model, options.batch_size, options.max_waiting)
        try:
            app = Server(model, name, batcher, limits).app(local=options.host in LOOPBACK)
            settings = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=5)
            listen(sockets)
            kinds = (
                "completions" if dialogue_of(model) is None else "completions and chat/completions"
            )
            print(
                f"{name}: http://{options.host}:{options.port}/v1, {kinds}; Ctrl-C stops it",
                flush=True,
            )
            with contextlib.suppress(KeyboardInterrupt):
                uvicorn.Server(settings).run(sockets=sockets)
        finally:
            batcher.close()
