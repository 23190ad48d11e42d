"""``python -m jaxformer``: see ``jaxformer.cli``."""

import sys

from jaxformer.cli import main

sys.exit(main())
