"""A pytest plugin: the Flax classes of transformers are those of `jaxformer.flax`, in memory.

The variable FLAX_SUITE_RESULTS names the file that gets a line of JSON for each test.
"""

import importlib.util
import json
import logging
import os
import sys
from importlib.abc import Loader, MetaPathFinder
from types import ModuleType

# Needs a newer huggingface_hub than transformers 4.55.
sys.modules["datasets"] = None

import jaxformer.flax  # noqa: E402
from jaxformer.flax.auto import NAMES  # noqa: E402

_WEIGHTS = {
    "FLAX_WEIGHTS_NAME": "flax_model.msgpack",
    "FLAX_WEIGHTS_INDEX_NAME": "flax_model.msgpack.index.json",
}
_MAPPINGS = {
    "FLAX_MODEL_MAPPING": "FlaxAutoModel",
    "FLAX_MODEL_FOR_QUESTION_ANSWERING_MAPPING": "FlaxAutoModelForQuestionAnswering",
    "FLAX_MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING": "FlaxAutoModelForSequenceClassification",
}


class _OldModule(ModuleType):
    """A module of transformers with Flax classes, whose names are those of `jaxformer.flax`."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        if name in _MAPPINGS:
            from transformers import CONFIG_MAPPING

            classes = NAMES[_MAPPINGS[name]].classes
            return {CONFIG_MAPPING[kind]: each for kind, each in classes.items()}
        return _WEIGHTS.get(name) or getattr(jaxformer.flax, name)


class _Finder(MetaPathFinder, Loader):
    """Finds the modules of transformers with Flax classes."""

    def find_spec(self, name, path=None, target=None):
        if not (name.startswith("transformers.") and "modeling_flax" in name):
            return None
        return importlib.util.spec_from_loader(name, self)

    def create_module(self, spec):
        return _OldModule(spec.name)

    def exec_module(self, module):
        pass


class _Forwarded(logging.Handler):
    """Passes messages on to the logger that the old classes had."""

    def emit(self, record):
        from transformers.utils import logging as old

        old.get_logger("transformers.modeling_flax_utils").warning(record.getMessage())


sys.meta_path.insert(0, _Finder())
logging.getLogger("jaxformer.hub.weights.flax_tree").addHandler(_Forwarded())


def pytest_runtest_logreport(report):
    if report.when == "call" or (report.when == "setup" and not report.passed):
        _write(report.nodeid, report.outcome, report)


def pytest_collectreport(report):
    if report.failed:
        _write(report.nodeid, "failed", report)


def _write(name, outcome, report):
    longrepr = report.longrepr
    crash = getattr(longrepr, "reprcrash", None)
    reason = crash.message if crash is not None else str(longrepr or "")
    if outcome == "skipped" and isinstance(longrepr, tuple):
        reason = longrepr[2]
    line = {"test": name, "outcome": outcome, "reason": reason}
    with open(os.environ["FLAX_SUITE_RESULTS"], "a") as file:
        file.write(json.dumps(line) + "\n")
