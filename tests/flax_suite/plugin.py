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

import numpy as np

# Needs a newer huggingface_hub than transformers 4.55.
sys.modules["datasets"] = None

import jaxformer.flax  # noqa: E402
from jaxformer.data.dataset import padded  # noqa: E402
from jaxformer.data.tasks.sounds.masked import masked_spans, sampled_negatives  # noqa: E402
from jaxformer.flax.auto import NAMES  # noqa: E402
from jaxformer.functional import sinusoidal_code  # noqa: E402
from jaxformer.hub.hf_config import HFConfig  # noqa: E402
from jaxformer.hub.model_format import last_to_front  # noqa: E402
from jaxformer.models.heads.quantized import codes_in_use  # noqa: E402

_WEIGHTS = {
    "FLAX_WEIGHTS_NAME": "flax_model.msgpack",
    "FLAX_WEIGHTS_INDEX_NAME": "flax_model.msgpack.index.json",
}
_MAPPINGS = {
    "FLAX_MODEL_MAPPING": "FlaxAutoModel",
    "FLAX_MODEL_FOR_QUESTION_ANSWERING_MAPPING": "FlaxAutoModelForQuestionAnswering",
    "FLAX_MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING": "FlaxAutoModelForSequenceClassification",
}


def _compute_mask_indices(shape, mask_prob, mask_length, attention_mask=None, min_masks=0):
    rows, length = shape
    rng = np.random.default_rng(0)
    frames = [length] * rows if attention_mask is None else attention_mask.sum(axis=1)
    options = {"probability": mask_prob, "span": mask_length, "min_spans": min_masks}
    return np.stack([padded(masked_spans(rng, n, **options), length, False) for n in frames])


def _sample_negative_indices(shape, num_negatives, attention_mask=None):
    rows, length, _ = shape
    rng = np.random.default_rng(0)
    valid = np.ones((rows, length), bool) if attention_mask is None else attention_mask > 0
    found = [sampled_negatives(rng, row, num_negatives) for row in valid]
    return np.stack([row * length + each for row, each in enumerate(found)])


class _Quantizer:
    @staticmethod
    def _compute_perplexity(probs, mask=None):
        weights = np.ones(len(probs)) if mask is None else mask
        return codes_in_use(probs[None], np.asarray(weights, np.float32)[None]).sum()


def _sinusoids(key, shape):
    rows, width = shape
    options = {"theta": 10000.0, "layout": "half", "endpoint": True}
    return sinusoidal_code(np.arange(rows), model_dim=width, **options)


def _last_to_front(input_ids, pad_token_id):
    return last_to_front(np.asarray(input_ids), HFConfig({"pad_token_id": pad_token_id}))


# Functions within the old modules -> those of this library, with the old arguments.
_FUNCTIONS = {
    "FlaxWav2Vec2GumbelVectorQuantizer": _Quantizer,
    "_compute_mask_indices": _compute_mask_indices,
    "_sample_negative_indices": _sample_negative_indices,
    "sinusoidal_embedding_init": _sinusoids,
}
# Those whose name has another meaning in one module.
_OF_MODULE = {
    "transformers.models.mbart.modeling_flax_mbart": {"shift_tokens_right": _last_to_front}
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
        functions = _WEIGHTS | _FUNCTIONS | _OF_MODULE.get(self.__name__, {})
        return functions.get(name) or getattr(jaxformer.flax, name)


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


def pytest_sessionstart():
    from transformers import testing_utils

    # Files of tests import it, for tests that need the hub.
    spec = importlib.util.spec_from_loader("datasets", None)
    sys.modules["datasets"] = importlib.util.module_from_spec(spec)
    sys.modules["datasets"].load_dataset = None
    # Such tests need the hub as well.
    vars(testing_utils).setdefault("require_soundfile", lambda test: test)


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
