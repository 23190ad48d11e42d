"""Flax checkpoints beside the Flax classes of transformers 4.55, which make and read them."""

import fnmatch
import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from jaxformer.flax.auto import NAMES
from jaxformer.generation.api import generate
from jaxformer.hub.checkpoint import read_checkpoint
from jaxformer.hub.flax_classes import FLAX_CLASSES
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.tasks.classes import CausalLMTask, Seq2SeqLMTask
from jaxformer.parity.compare import differences
from jaxformer.parity.examples import example_inputs
from jaxformer.parity.tiny import TINY
from jaxformer.parity.tiny_images import TINY_CLASSES
from jaxformer.pretrained.auto import load
from jaxformer.pretrained.flax_params import flax_params
from jaxformer.pretrained.outputs import forward
from jaxformer.pretrained.writing import save
from jaxformer.zoo import FORMATS

PYTHON = os.environ.get("JAXFORMER_FLAX_ORACLE", "")
ORACLE = Path(__file__).parents[1] / "flax_oracle.py"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.torch,
    pytest.mark.flax_oracle,
    pytest.mark.skipif(not PYTHON, reason="JAXFORMER_FLAX_ORACLE names no Python"),
]
_WITHOUT_ROPE = {"rope_parameters": None, "attention_bias": False, "head_dim": 8}
_SQUARE = {"image_size": 12, "patch_size": 4, "num_channels": 3}
# A bert2bert of Flax generates token 0 alone, though its logits are those of PyTorch's; with a mask
# of samples a speech encoder and its decoder end in an error.
_SILENT = ("encoder-decoder", "speech-encoder-decoder")
CHANGES = {
    # What the Flax classes ignored; and transformers 4 had other names for the fields of RoPE.
    "llama": {**_WITHOUT_ROPE, "mlp_bias": False},
    "gemma": _WITHOUT_ROPE,
    "mistral": {"sliding_window": 64, "head_dim": 8},
    "electra": {"hidden_act": "gelu"},
    "gpt2": {"scale_attn_by_inverse_layer_idx": False},
    # What they could not do: images that are not square or have other than 3 channels, and numbers
    # of heads that are not a power of 2.
    "vit": {"image_size": 12, "patch_size": 4},
    "clip_vision_model": {"num_channels": 3},
    "bloom": {"n_head": 4},
    "roformer": {"embedding_size": None},
    "clip": {"vision_config": TINY["clip"]["vision_config"] | {"num_channels": 3}},
    "BigBirdForCausalLM": {"attention_type": "original_full"},
    "vision-encoder-decoder": {
        "encoder": TINY["vision-encoder-decoder"]["encoder"] | _SQUARE,
        "decoder": TINY["vision-encoder-decoder"]["decoder"]
        | {"scale_attn_by_inverse_layer_idx": False},
    },
    # Its parameters are made with a row of 168 tokens.
    "speech-encoder-decoder": {
        "decoder": TINY["speech-encoder-decoder"]["decoder"]
        | {"scale_attn_by_inverse_layer_idx": False, "n_positions": 170},
    },
    # The mean over layers ended in an error.
    "WhisperForAudioClassification": {"use_weighted_layer_sum": False},
    # Positions of RoBERTa's texts begin at 0 in a dual encoder.
    "vision-text-dual-encoder": {
        "text_config": TINY["bert"] | {"model_type": "bert"},
        "vision_config": TINY["vision-text-dual-encoder"]["vision_config"] | _SQUARE,
    },
}
"""`model_type` or class -> fields that differ from those of `TINY`."""
CASES = {
    f"{kind}-{name}": (kind, FORMATS[kind].architecture(name).name)
    for kind, names in FLAX_CLASSES.items()
    for name in names
    if kind in FORMATS and FORMATS[kind].architecture(name) is not None
}
CASES |= {
    f"{kind}-{name}": (kind, name)
    for kind, name in [
        ("clip_text_model", "CLIPTextModel"),
        ("clip_text_model", "CLIPTextModelWithProjection"),
        ("clip_vision_model", "CLIPVisionModel"),
    ]
}
_OLD = {("speech-encoder-decoder", "input_values"): "inputs"}
"""The old names of inputs."""
NO_END = {"eos_token_id": None, "forced_eos_token_id": None, "forced_bos_token_id": None}
each_case = pytest.mark.parametrize("name", CASES)


def case_of(name, folder):
    """What the oracle is asked for; saves the inputs."""
    from transformers import AutoConfig

    kind, architecture = CASES[name]
    fields = FORMATS[kind].architecture(architecture).fields
    own = TINY[kind] | TINY_CLASSES.get(architecture, {}) | CHANGES.get(kind, {}) | fields
    own |= CHANGES.get(architecture, {})
    config = {name: value for name, value in own.items() if value is not None}
    values = AutoConfig.for_model(kind, **config).to_dict() | {"architectures": [architecture]}
    checkpoint = read_checkpoint(HFConfig(values), FORMATS)
    # Flax's causal encoders cannot generate: they drop the cache.
    writes = isinstance(checkpoint.architecture.task, CausalLMTask | Seq2SeqLMTask)
    generates = writes and not fields and kind not in _SILENT
    # PyTorch's Whisper counts the positions of padding too.
    inputs = example_inputs(checkpoint, "left" if writes and kind != "whisper" else "right")
    (folder / name).mkdir()
    apart = ("label", "_positions", "return_loss", "sampled_negative")
    apart += ("token_type",) * (kind == "encoder-decoder")
    kept = {k: x for k, x in inputs.items() if not any(name in k for name in apart)}
    np.savez(folder / name / "inputs.npz", **{_OLD.get((kind, k), k): x for k, x in kept.items()})
    return {
        "name": name,
        "class": f"Flax{name.rpartition('-')[2]}",
        "model_type": kind,
        "config": config,
        "generate": generates,
        # Three ways in which such files lie on the hub.
        "save": {"max_shard_size": "20KB"} if fnmatch.fnmatch(name, "*ForSequence*") else {},
    }


def run(action, folder):
    """Runs the oracle in its environment, which has another JAX."""
    own = ("JAX", "XLA", "PYTHON")
    environment = {name: x for name, x in os.environ.items() if not name.startswith(own)}
    environment |= {"JAX_PLATFORMS": "cpu", "JAXFORMER_FLAX_ORACLE": ""}
    subprocess.run([PYTHON, ORACLE, action, folder], env=environment, check=True)


@pytest.fixture(scope="module")
def made(request, tmp_path_factory):
    """The folder of all models: as Flax wrote them, as we wrote them again, and read by Flax."""
    folder = tmp_path_factory.mktemp("oracle")
    chosen = [item for item in request.node.session.items if item.path == request.path]
    asked = {item.callspec.params["name"] for item in chosen}
    cases = [case_of(name, folder) for name in CASES if name in asked]
    (folder / "cases.json").write_text(json.dumps(cases))
    run("make", folder)
    for case in cases:
        home = folder / case["name"]
        if not (home / "error.txt").exists():
            try:
                save(load(home / "flax", dtype=None), home / "hf")
                save(load(home / "hf"), home / "written", format="flax")
            except Exception as error:  # the test of this case shows it
                (home / "error.txt").write_text(f"ours: {error!r}")
    run("read", folder)
    return folder


@each_case
def test_equal_to_the_flax_class(name, made):
    home = made / name
    assert not (home / "error.txt").exists(), (home / "error.txt").read_text()
    with np.load(home / "inputs.npz") as file:
        old = dict(file)
    inputs = {"input_values" if name == "inputs" else name: x for name, x in old.items()}
    model = load(home / "flax")
    with np.load(home / "outputs.npz") as file:
        expected = dict(file)
    with np.load(home / "read.npz") as file:
        again = dict(file)
    tokens = expected.pop("generated", None)
    for theirs in (expected, {name: x for name, x in again.items() if name != "generated"}):
        found = differences(forward(model, inputs), theirs, inputs)
        assert found, f"nothing to compare: {list(theirs)}"
        assert max(found.values()) <= 2e-5, found
    if tokens is not None:
        given = {k: x for k, x in inputs.items() if not k.startswith(("decoder_", "token_type"))}
        ours = generate(model, given, max_new_tokens=5, **NO_END)
        assert np.array_equal(ours["sequences"], tokens), (ours, tokens)
        assert np.array_equal(again["generated"], tokens)
    assert json.loads((home / "read.json").read_text()) == []
    if (old_class := NAMES.get(f"Flax{name.rpartition('-')[2]}")) is not None:
        outputs = old_class.from_pretrained(home / "flax")(**old)
        found = differences({k: outputs[k] for k in expected}, expected, inputs)
        assert max(found.values()) <= 2e-5, found


@each_case
def test_the_same_bytes_come_back(name, made, tmp_path):
    from flax.serialization import msgpack_restore

    home = made / name
    model = load(home / "flax", dtype=None)
    save(model, tmp_path / "again", format="flax")
    for path in (home / "flax").glob("flax_model*"):
        assert (tmp_path / "again" / path.name).read_bytes() == path.read_bytes(), path.name
    if (path := home / "flax" / "flax_model.msgpack").exists():
        tree = msgpack_restore(path.read_bytes())
        assert_same_tree(flax_params(model), tree)


def assert_same_tree(ours, theirs):
    """Same keys, shapes, dtypes and values."""
    assert type(theirs) is not dict or ours.keys() == theirs.keys()
    if isinstance(theirs, dict):
        for key, value in theirs.items():
            assert_same_tree(ours[key], value)
    else:
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(np.asarray(ours), theirs)
