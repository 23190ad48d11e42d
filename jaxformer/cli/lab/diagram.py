"""``jaxformer lab diagram CONFIG``: draws the architecture of a config."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jaxformer.cli.options import split_config
from jaxformer.config.experiment import Config, check_has_model, load_config
from jaxformer.config.overrides import parse
from jaxformer.config.shipped import config_spec
from jaxformer.errors import ConfigError
from jaxformer.lab.diagram.architecture import describe
from jaxformer.lab.diagram.picture import draw
from jaxformer.lab.drawing import save

_ENDINGS = (".svg", ".png", ".pdf")
_DESCRIPTION = """\
Draws the model of a config: one block of each stack with its norms, sublayers and residual sums,
its inputs and outputs, and the shapes and parameters of every part. CONFIG is the same as for
`jaxformer train`: the name of a shipped config (tiny_decoder, bert:base) or the path of a Python
file. Options change the fields of the config: --model.num-layers 3. `{prog} CONFIG --help` lists
them.

The figure is written to NAME.svg unless --out is given.

Configs: {names}"""


@dataclass(frozen=True)
class Diagram(Config):
    """Draws the architecture of a config."""

    out: Path | None = None
    """The output file: .svg, .png or .pdf (default: NAME.svg)."""


def diagram(arguments: Sequence[str], prog: str) -> None:
    """Draws the architecture of the configured model."""
    name, remaining = split_config(arguments, prog, _DESCRIPTION)
    defaults = Diagram(**vars(load_config(config_spec(name))))
    options = parse(defaults, remaining, f"{prog} {name}")
    check_has_model(options)
    stem, _, argument = name.partition(":")
    title = Path(stem).stem + (f"-{argument}" if argument else "")
    out = options.out or Path(f"{title}.svg")
    if out.suffix not in _ENDINGS:
        raise ConfigError(f"out = {str(out)!r}: must end in one of {', '.join(_ENDINGS)}")
    if not out.parent.is_dir():
        raise ConfigError(f"out = {str(out)!r}: must be in an existing folder")
    print(f"written to {save(draw(describe(options.model), title), out)}")
