"""Files config.json as they were published, by names of their models."""

import json
from pathlib import Path

FILES = json.loads((Path(__file__).parents[1] / "fixtures/published_configs.json").read_text())
