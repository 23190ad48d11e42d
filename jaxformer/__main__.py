"""``python -m jaxformer``, and the command ``jaxformer``: see ``jaxformer.cli.main``."""

import logging
import sys

from jaxformer.cli.interruption import quitting_on_interrupt


def main() -> int:
    """Runs one command; returns the exit status."""
    logging.basicConfig(format="%(levelname)s: %(message)s")
    with quitting_on_interrupt():
        from jaxformer.cli import main as cli
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
