"""Every class of every system, made by transformers, read by us, compared, and written back."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest
from saved_folders import save_tiny

from jaxformer.errors import ConfigError
from jaxformer.hub.checkpoint import read_checkpoint
from jaxformer.hub.describe import config_values, describe
from jaxformer.hub.fields import resolved
from jaxformer.hub.hf_config import HFConfig
from jaxformer.parity.compare import differences
from jaxformer.parity.examples import example_inputs
from jaxformer.parity.table import measure, parse_page
from jaxformer.pretrained.auto import load
from jaxformer.pretrained.outputs import forward
from jaxformer.zoo import FORMATS

pytestmark = pytest.mark.torch

CLASSES = {
    f"{format.model_type}-{architecture.name}": (format, architecture)
    for format in FORMATS.values()
    for architecture in format.architectures
}
FAMILIES = ("llama", "bert", "t5", "vit")
LAST = {name: f"{name}-{each.architectures[-1].name}" for name, each in FORMATS.items()}
DOCUMENTED = parse_page((Path(__file__).parents[2] / "docs" / "parity.md").read_text())


@pytest.mark.parametrize(("format", "architecture"), CLASSES.values(), ids=CLASSES)
@pytest.mark.quick(*(LAST[name] for name in FAMILIES))
def test_equal_in_transformers_and_no_worse_than_documented(format, architecture, tmp_path):
    row = measure(format, architecture, tmp_path)
    assert not row.wrong, row
    assert row.agreement in (None, 1.0), row
    assert row.exported, row
    documented = DOCUMENTED[row.system, row.architecture]
    assert set(row.missing) <= set(documented.missing), row
    # Another machine's kernels round otherwise.
    assert row.bfloat16 is None or row.bfloat16 <= 2 * documented.bfloat16, row
    # As after training, when only our configuration and the old file are left.
    model = load(tmp_path / "transformers")
    given = model.checkpoint.hf_config.given
    again = describe(model.config, FORMATS.values(), given)
    assert again.architecture.name == architecture.name
    assert config_values(again) == config_values(model.checkpoint) == given


def test_the_table_has_every_class():
    assert list(DOCUMENTED) == [(f.model_type, a.name) for f, a in CLASSES.values()]


@pytest.mark.parametrize("kind", FORMATS)
def test_the_description_survives_the_way_back(kind, tmp_path):
    values = json.loads((save_tiny(kind, tmp_path) / "config.json").read_text())
    checkpoint = read_checkpoint(HFConfig(values), FORMATS)
    kept = {
        name: values[name]
        for name in values
        if name.endswith("token_id") or name in ("id2label", "model_type", "architectures")
    }
    written = kept | checkpoint.model_format.config_map.write(checkpoint.config)
    # Alone, a model may be described as one of another system that can express the same.
    for values in (written, describe(checkpoint.config, FORMATS.values()).hf_config.values):
        again = read_checkpoint(HFConfig(values), FORMATS)
        assert resolved(again.config) == resolved(checkpoint.config)


@pytest.mark.parametrize("kind", ["whisper", "t5gemma"])
def test_a_system_of_two_parts_is_described_by_its_format_alone(kind, tmp_path):
    config = load(save_tiny(kind, tmp_path)).config
    assert describe(config, [FORMATS[kind]]).config == config
    with pytest.raises(ConfigError, match="no known system"):
        describe(config.parts["encoder"], [])


@pytest.mark.parametrize("kind", FAMILIES)
@pytest.mark.slow
def test_eager_and_unrolled_are_the_same(kind, tmp_path):
    save_tiny(kind, tmp_path)
    scanned, unrolled = load(tmp_path, scan_layers=True), load(tmp_path, scan_layers=False)
    inputs = example_inputs(scanned.checkpoint, "left")
    expected = forward(scanned, inputs, output_hidden_states=True)
    with jax.disable_jit():
        eager = forward(unrolled, inputs, output_hidden_states=True)
    for actual in (forward(unrolled, inputs, output_hidden_states=True), eager):
        # Both are ours: what a compiler may change in sums of 50 terms, through 4 layers.
        assert max(differences(actual, expected, inputs).values()) <= 2e-5


@pytest.mark.parametrize("kind", FAMILIES)
@pytest.mark.quick("bert")
def test_outputs_are_arrays_of_numpy(kind, tmp_path):
    model = load(save_tiny(kind, tmp_path))
    outputs = forward(model, example_inputs(model.checkpoint))
    assert all(type(array) is np.ndarray for array in outputs.values())
    assert not any(name.endswith(("hidden_states", "attentions")) for name in outputs)
