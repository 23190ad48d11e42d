"""Import to memory and export of a Hugging Face checkpoint by jaxformer."""

import shutil
from collections.abc import Callable

import jax
import numpy as np
from peak_memory import baseline, measured

import jaxformer
from jaxformer.hub.describe import describe
from jaxformer.models import LanguageModel
from jaxformer.pretrained.model import Pretrained, described_by
from jaxformer.zoo import FORMATS
from jaxformer.zoo.common.llama_like import llama


def make(folder: str) -> Callable[[], None]:
    """Writes a Llama of 1.1 billion random bfloat16 numbers (the shape of TinyLlama)."""
    config = llama(22, 2048, 32, 5632, num_kv_heads=4, heads=(LanguageModel(),))
    model = Pretrained(config, {}, described_by(describe(config, [FORMATS["llama"]])))
    rng = np.random.default_rng(0)

    def run():
        for name, shape in model.abstract_model.shapes.items():
            # Numbers between 1 and 2 have these bits at the front.
            bits = rng.integers(2**7, size=shape.shape, dtype=np.uint16) + np.uint16(0x3F80)
            model.parameters[name] = jax.device_put(bits.view(jax.numpy.bfloat16))
        jaxformer.save(model, folder)

    return run


def load(folder: str, dtype: str | None) -> tuple[Callable[[], None], dict]:
    """Prepares loading (None: in the dtype of the files), which fills the dictionary of facts."""
    jax.devices()
    facts = baseline()

    def run():
        facts["load"] = measured(lambda: facts.update(model=_loaded(folder, dtype)))
        arrays = facts.pop("model").parameters.values()
        facts["use"] = measured(lambda: [np.asarray(x).view(np.uint8).max() for x in arrays])

    return run, facts


def save(folder: str, target: str) -> tuple[Callable[[], None], dict]:
    """Prepares saving a model that is in memory."""
    jax.devices()
    facts = baseline()
    model = _loaded(folder, None)

    def run():
        facts["save"] = measured(lambda: jaxformer.save(model, target))
        shutil.rmtree(target)

    return run, facts


def _loaded(folder: str, dtype: str | None) -> Pretrained:
    model = jaxformer.load(folder, dtype=dtype)
    jax.block_until_ready(model.parameters)
    return model
