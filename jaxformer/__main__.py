"""``python -m jaxformer``, the same as the command ``jaxformer``: see `jaxformer.cli.main`."""

import sys

from jaxformer.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
