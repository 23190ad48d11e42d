"""``jaxformer lab cache CONFIG``: the size and the savings of a decoder's KV cache."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jaxformer.cli.lab.experiments import finish
from jaxformer.cli.options import split_config
from jaxformer.config.experiment import Config, check_has_model, load_config
from jaxformer.config.overrides import parse
from jaxformer.config.shipped import config_spec
from jaxformer.lab.experiments.kv_cache import cache_report
from jaxformer.nn.cache import Storage

_DESCRIPTION = """\
Shows the size of the KV cache of a config's model, the savings with fewer key/value heads, and the
work of the next token with and without the cache. CONFIG is the same as for `jaxformer train`: the
name of a shipped config (tiny_decoder, llama:llama3-8b) or the path of a Python file. Options
change the fields of the config: --model.num-kv-heads 2. `{prog} CONFIG --help` lists them.

Configs: {names}"""


@dataclass(frozen=True)
class Cache(Config):
    """Shows the size of a decoder's KV cache and the work that it saves."""

    lengths: tuple[int, ...] | None = None
    """Row lengths in tokens (n), increasing (default: up to the model's maximum length, or 65536).
    """
    storage: Storage = "bfloat16"
    """The dtype of the cache."""
    out: Path = Path("runs/lab-cache")
    """The output folder for cache.html and cache.png."""


def cache(arguments: Sequence[str], prog: str) -> None:
    """Reports on the KV cache of the configured model."""
    name, remaining = split_config(arguments, prog, _DESCRIPTION)
    config = load_config(config_spec(name))
    options = parse(Cache(**vars(config)), remaining, f"{prog} {name}")
    check_has_model(options)
    finish(cache_report(options.model, name, options.lengths, options.storage), options.out)
