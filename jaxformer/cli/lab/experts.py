"""``jaxformer lab experts``: the experts of a trained model and their tokens."""

from dataclasses import dataclass
from pathlib import Path

from jaxformer.cli.options import ModelChoice
from jaxformer.data.files.lines import text_lines
from jaxformer.errors import ArgumentError
from jaxformer.io.console import console, plain_table
from jaxformer.lab.experts.report import HEADER, table, write_experts
from jaxformer.lab.experts.routing import expert_routing
from jaxformer.lab.page import shown
from jaxformer.pretrained.auto import load


@dataclass(frozen=True, kw_only=True)
class Experts(ModelChoice):
    """Draws how the experts of a trained model process a text.

    Shows the load of every expert, the entropy of the routing, how much routing depends only on the
    token id, and the tokens of each expert, without padding. For a decoder or a text encoder with
    experts.
    """

    text: str | None = None
    """The text that the model reads."""
    file: Path | None = None
    """A file with the text, instead of --text; a long text gives better statistics."""
    length: int = 512
    """Tokens per row; a longer text is split into rows."""
    max_tokens: int = 32_768
    """Maximum number of tokens to read."""
    layers: tuple[int, ...] | None = None
    """The layers to show, from 0 (default: all with experts)."""
    out: Path = Path("runs/lab-experts")
    """The output folder for experts.html, experts.json and the figures."""


def experts(options: Experts) -> None:
    """Writes the report on a model's experts, and prints its table of layers."""
    if (options.text is None) == (options.file is None):
        raise ArgumentError('give either --text "..." or --file FILE, a text that the model reads')
    text = options.text if options.file is None else "".join(text_lines(options.file))
    model = load(options.folder, **options.how)
    sizes = {"length": options.length, "max_tokens": options.max_tokens}
    routing = expert_routing(model, text, **sizes).select(options.layers)
    name = Path(options.folder).resolve().name
    source = "a text" if options.file is None else options.file.name
    setting = f"{name} on {len(routing.ids):,} tokens of {source}."
    page, *others = write_experts(options.out, f"The experts of {name}", setting, routing)
    rows = (map(shown, row) for row in table(routing))
    columns = plain_table(*(f"{title} >" for title in HEADER), rows=rows)
    console().print(columns, markup=False)
    print(f"\n{setting}\nwritten: {page}, and {len(others)} files next to it")
