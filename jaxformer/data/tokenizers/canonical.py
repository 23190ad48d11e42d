"""Changes of a text before it is split into tokens that tokenizer.json cannot say."""

import string
from collections.abc import Callable, Mapping
from typing import Any


def canonical_text(settings: Mapping[str, Any]) -> Callable[[str], str]:
    """Returns the change that a tokenizer of transformers makes to a text first.

    SigLIP's leaves out punctuation and, unless it says otherwise, upper case.

    Args:
        settings: The fields of tokenizer_config.json.
    """
    if settings.get("tokenizer_class") not in ("SiglipTokenizer", "SiglipTokenizerFast"):
        return str
    lower, without = settings.get("do_lower_case", True), str.maketrans("", "", string.punctuation)
    return lambda text: " ".join((text.lower() if lower else text).translate(without).split())
