"""The processor of this machine and its instruction sets."""

import platform
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple


class Processor(NamedTuple):
    """A processor."""

    name: str
    """Its name; "" if unknown."""
    features: frozenset[str]
    """Its instruction sets, as Linux names them ("avx2"); empty if unknown."""


@cache
def processor() -> Processor:
    """Returns the processor of this machine, as /proc/cpuinfo describes it."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return Processor(platform.processor(), frozenset())

    def field(names: str) -> str:
        found = re.search(rf"^(?:{names})\s*: (.+)$", text, re.MULTILINE)
        return found.group(1) if found else ""

    return Processor(field("model name|Model"), frozenset(field("flags|Features").split()))
