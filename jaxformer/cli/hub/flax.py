"""``jaxformer flax-classes``: maps the Flax classes of transformers 4 to this library."""

from dataclasses import dataclass
from pathlib import Path

from jaxformer.errors import DataError
from jaxformer.io.files import read_bytes
from jaxformer.parity.flax_table import flax_table, missing, with_table


@dataclass(frozen=True)
class FlaxClasses:
    """Lists the Flax classes of transformers 4.55 and their equivalents here.

    Generates the table from the known systems.
    """

    page: Path | None = None
    """The page whose table to update: docs/from-flax.md (None: print the table)."""


def flax_classes(options: FlaxClasses) -> None:
    """Prints the table, or updates it in the page."""
    if (page := options.page) is None:
        print("\n".join(flax_table()))
        return
    try:
        text = read_bytes(page).decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{page}: must be a UTF-8 text file") from error
    page.write_text(with_table(text), encoding="utf-8")
    print(f"written to {page}; without a class here: {', '.join(missing()) or 'none'}")
