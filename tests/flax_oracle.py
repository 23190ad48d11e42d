"""Runs the Flax classes of transformers 4.55; needs an environment of its own (docs/testing.md).

`flax_oracle.py make FOLDER` reads FOLDER/cases.json, a list of

    {"name": ..., "class": "FlaxBertModel", "model_type": "bert", "config": {...}, "save": {...}}

and makes for each a small model of random numbers in FOLDER/NAME/flax, with the outputs for
FOLDER/NAME/inputs.npz in FOLDER/NAME/outputs.npz. `flax_oracle.py read FOLDER` loads the models in
FOLDER/NAME/written, which something else wrote, and writes their outputs to read.npz and what
transformers said about their arrays to read.json.
"""

import json
import logging
import sys
import traceback
from logging.handlers import BufferingHandler
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import transformers
from flax.traverse_util import flatten_dict, unflatten_dict

NEW_TOKENS = 5
_SOURCES = ("pixel_values", "input_features", "inputs", "input_ids")
"""What the first argument of `generate` may be."""
_LISTS = ("hidden_states", "encoder_hidden_states", "decoder_hidden_states", "past_key_values")


def random_parameters(shapes, scale, seed=0):
    """Numbers with which every parameter matters, and states neither vanish nor saturate."""
    rng = np.random.default_rng(seed)
    flat = flatten_dict(shapes)
    for path, array in flat.items():
        noise = rng.standard_normal(array.shape).astype(np.float32)
        if path[-1] == "kernel":
            flat[path] = noise * np.prod(array.shape[:-1]) ** -0.5
        else:
            is_scale = array.ndim == 1 and path[-1] in ("scale", "weight", "lambda1")
            flat[path] = 0.3 * noise + (scale if is_scale else 0.0)
        flat[path] = jnp.asarray(flat[path], array.dtype)
    return unflatten_dict(flat)


def outputs(model, params, inputs, generate):
    """The outputs of a model, and greedy tokens."""
    found = model(**inputs, params=params, return_dict=True)
    arrays = {
        name: np.asarray(value, np.float32)
        for name, value in found.items()
        if name not in _LISTS and hasattr(value, "shape")
    }
    if generate:
        given = {k: x for k, x in inputs.items() if not k.startswith(("decoder_", "token_type"))}
        first = given.pop(next(name for name in _SOURCES if name in given))
        tokens = model.generate(
            first, **given, params=params, max_new_tokens=NEW_TOKENS, do_sample=False, num_beams=1,
            # A token of no vocabulary: None would mean that of the model's own generation_config.
            eos_token_id=2**20, forced_eos_token_id=None, forced_bos_token_id=None,
        )  # fmt: skip
        arrays["generated"] = np.asarray(tokens.sequences)
    return arrays


def has_parts(case):
    """Whether a model has two parts; such models cannot be made without numbers."""
    return any(part in case["config"] for part in ("encoder", "vision_config"))


def inputs_of(folder):
    """The inputs of a case."""
    with np.load(folder / "inputs.npz") as file:
        return dict(file)


def make(folder, case):
    """Makes a model, and its outputs."""
    kind = transformers.CONFIG_MAPPING[case["model_type"]]
    config = kind(**case["config"])
    config.architectures = [case["class"].removeprefix("Flax")]
    model = getattr(transformers, case["class"])(config, _do_init=has_parts(case))
    # Gemma adds 1 to its scales.
    scale = 0.0 if config.model_type == "gemma" else 1.0
    params = random_parameters(model.params_shape_tree, scale)
    model.save_pretrained(folder / "flax", params=params, **case.get("save", {}))
    inputs = inputs_of(folder)
    np.savez(folder / "outputs.npz", **outputs(model, params, inputs, case.get("generate")))


def read(folder, case):
    """Loads a model that something else wrote."""
    logged = BufferingHandler(10_000)
    logger = logging.getLogger("transformers.modeling_flax_utils")
    logger.addHandler(logged)
    try:
        kind = getattr(transformers, case["class"])
        if has_parts(case):
            model = kind.from_pretrained(folder / "written")
            params = model.params
        else:
            model, params = kind.from_pretrained(folder / "written", _do_init=False)
        inputs = inputs_of(folder)
        np.savez(folder / "read.npz", **outputs(model, params, inputs, case.get("generate")))
    finally:
        logger.removeHandler(logged)
    messages = [record.getMessage() for record in logged.buffer]
    wrong = [text for text in messages if "weights of" in text or "missing" in text]
    (folder / "read.json").write_text(json.dumps(wrong))


def main(action, folder):
    """Makes or reads all cases; one that fails leaves an error.txt and does not stop the others."""
    folder = Path(folder)
    for case in json.loads((folder / "cases.json").read_text()):
        if (folder / case["name"] / "error.txt").exists():
            continue
        try:
            {"make": make, "read": read}[action](folder / case["name"], case)
        except Exception as error:  # said to the test of this case
            text = f"{action}: {type(error).__name__}: {error}\n{traceback.format_exc()}"
            (folder / case["name"] / "error.txt").write_text(text)


if __name__ == "__main__":
    main(*sys.argv[1:])
