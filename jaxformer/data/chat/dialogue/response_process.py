"""Reads answers by a `response_template`, with transformers; `responses.py` runs it as a script.

Such a template contains regular expressions by the model's publisher, which may never terminate.
This file imports neither this library nor PyTorch.
"""

import json
import os
import sys


def main() -> None:
    """Reads a list of arguments of `parse_response`; writes a {"message"} or an {"error"} for each,
    or null if this version of transformers has no such function.
    """
    sys.modules["torch"] = None
    os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1"}
    asked = json.load(sys.stdin)
    try:
        from transformers.utils.chat_parsing import parse_response
    except ImportError:
        print("null")
        return
    found = []
    for request in asked:
        try:
            found.append({"message": parse_response(**request)})
        except Exception as error:  # the template is a program, which may raise any error
            found.append({"error": str(error) or type(error).__name__})
    print(json.dumps(found))


if __name__ == "__main__":
    main()
