"""Trains a model, or continues its run: the same as ``jaxformer train``.

``python train.py configs/NAME.py --help`` lists every option.
"""

import sys

from jaxformer.cli.main import run

if __name__ == "__main__":
    sys.exit(run("train", sys.argv[1:], prog="python train.py"))
