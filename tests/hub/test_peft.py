"""Adapters that PEFT writes give its logits here, and those written here give ours there."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
from peft_models import check_logits, logits_of, random_arrays, torch_model, write_random
from saved_folders import save_tiny

import jaxformer
from jaxformer.checkpoints.saved_run import write_run
from jaxformer.cli import main as cli
from jaxformer.config import Config, TrainConfig
from jaxformer.data import DataConfig
from jaxformer.errors import ConfigError, DataError
from jaxformer.hub.peft.config import read_peft_config
from jaxformer.models.lora import LoRA, adapted
from jaxformer.pretrained.export.adapter import export_adapter
from jaxformer.training.transfer.origin import open_named

pytestmark = pytest.mark.torch

peft = pytest.importorskip("peft")

from hf_checkpoints import save_checkpoint  # noqa: E402

QUERIES = LoRA(rank=2, alpha=5.0, targets=("query",))


@pytest.fixture(
    scope="module", params=["llama", "gpt2", "bert_classifier", "t5", "gpt_neox", "falcon"]
)
def base(request, tmp_path_factory):
    folder, kind = tmp_path_factory.mktemp("base") / request.param, request.param
    return kind, (save_tiny if kind in ("gpt_neox", "falcon") else save_checkpoint)(kind, folder)


def inputs_of(folder):
    random = np.random.default_rng(0)
    ids = random.integers(5, 50, size=(2, 7))
    values = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    if json.loads((folder / "config.json").read_text())["model_type"] == "t5":
        values["decoder_input_ids"] = random.integers(5, 50, size=(2, 5))
    return values


@pytest.mark.parametrize("targets", [("query", "value"), ("value", "output", "down")])
@pytest.mark.quick("t5-*")
def test_adapters_for_peft(base, targets, tmp_path):
    name, folder = base
    model = jaxformer.load(folder)
    lora = LoRA(rank=2, alpha=5.0, targets=targets)
    adapter, written = write_random(tmp_path, model, lora, folder)
    theirs = peft.PeftModel.from_pretrained(torch_model(folder), tmp_path).eval()
    model = jaxformer.load(folder, adapters={"it": tmp_path})
    ours = model.with_adapters("it")
    check_logits(ours, theirs, inputs_of(folder))
    for kernel, (a, b, scale) in adapter.factors.items():
        expected = adapted(model.parameters[kernel], a, b, scale)
        np.testing.assert_allclose(ours.parameters[kernel], expected, rtol=1e-5, atol=1e-6)
        assert scale == 2.5
        assert a.any()
        assert b.any()
    changed = {n for n, x in ours.parameters.items() if x is not model.parameters[n]}
    fused = name in ("gpt2", "gpt_neox", "falcon")
    assert changed >= {*adapter.factors, *adapter.replaced}
    # All parts of a fused tensor have factors, some of them zero.
    assert fused or changed == {*adapter.factors, *adapter.replaced}
    assert bool(adapter.replaced) == (name == "bert_classifier")
    assert written.fan_in_fan_out == (name == "gpt2")
    assert read_peft_config(tmp_path).base == str(folder)


def adapted_run(folder, base):
    """A run as training leaves it, with factors that are not zero."""
    model, lora = jaxformer.load(base), LoRA(rank=2, alpha=5.0)
    config = Config(model.config, DataConfig(), train=TrainConfig(lora=lora), init_from=str(base))
    learned = {name: jnp.asarray(x) for name, x in random_arrays(model, lora).items()}
    write_run(folder, config, 3, model.parameters | learned)
    return folder


@pytest.mark.parametrize("kind", ["gpt2", "bert_classifier"])
@pytest.mark.quick("gpt2")
def test_a_run_is_exported_as_an_adapter_and_merged(kind, tmp_path, capsys):
    base = save_checkpoint(kind, tmp_path / "base")
    run = adapted_run(tmp_path / "run", base)
    out, merged = tmp_path / "adapter", tmp_path / "merged"
    assert cli.main(["export", str(run), str(out), "--adapter"]) == 0
    assert f'PeftModel.from_pretrained(base, "{out}")' in capsys.readouterr().out
    theirs = peft.PeftModel.from_pretrained(torch_model(base), out).eval()
    expected = logits_of(theirs, inputs_of(base))
    logits = jaxformer.forward(jaxformer.load(run), inputs_of(base))["logits"]
    np.testing.assert_allclose(logits, expected, atol=1e-5)
    if kind == "gpt2":
        assert cli.main(["export", str(run), str(merged)]) == 0
        np.testing.assert_allclose(
            logits_of(torch_model(merged), inputs_of(base)), expected, atol=1e-5
        )
    # The adapter names its base, so that it can be loaded by itself.
    ours = jaxformer.forward(jaxformer.load(out), inputs_of(base))["logits"]
    np.testing.assert_allclose(ours, expected, atol=1e-5)
    written = json.loads((out / "adapter_config.json").read_text())
    learned = ["classifier"] if kind == "bert_classifier" else None
    assert written["modules_to_save"] == learned
    assert written["base_model_name_or_path"] == str(base)
    assert written["target_modules"] == (["query", "value"] if learned else ["c_attn"])
    saved = open_named(out, "init_from")
    start = saved.read(saved.shapes)
    for name, value in jaxformer.load(out).parameters.items():
        np.testing.assert_array_equal(start[name], value)


def test_several_adapters_of_one_base(tmp_path):
    base = save_checkpoint("llama", tmp_path / "base")
    folders = {name: tmp_path / name for name in ("a", "b")}
    write_random(folders["a"], jaxformer.load(base), QUERIES)
    write_random(folders["b"], jaxformer.load(base), LoRA(rank=3, targets=("all-linear",)))
    model = jaxformer.load(base, adapters=folders)
    both = model.with_adapters({"a": 0.25, "b": -2.0}).parameters
    for name, value in model.parameters.items():
        changes = [
            np.asarray(model.with_adapters(which).parameters[name]) - np.asarray(value)
            for which in ("a", "b")
        ]
        expected = np.asarray(value) + 0.25 * changes[0] - 2.0 * changes[1]
        np.testing.assert_allclose(both[name], expected, rtol=1e-4, atol=1e-5, err_msg=name)
    with pytest.raises(ConfigError, match="must be among a, b"):
        model.with_adapters("c")


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"peft_type": "LOHA"}, ConfigError, "peft_type = 'LOHA': must be one of LORA.*merge"),
        ({"peft_type": "PROMPT_TUNING"}, ConfigError, "peft_type = 'PROMPT_TUNING'"),
        ({"peft_type": "IA3"}, DataError, "peft_type and use_dora"),
        ({"use_dora": True}, DataError, "peft_type and use_dora"),
        ({"use_bdlora": True}, ConfigError, "use_bdlora = True: must be None; merge the adapter"),
        ({"init_lora_weights": "pissa"}, ConfigError, "changes the weights of the base"),
        ({"r": 0}, ConfigError, "must be positive numbers"),
        ({"lora_alpha": "16"}, ConfigError, "must be positive numbers"),
    ],
)
def test_adapters_that_are_refused(changes, error, message, tmp_path):
    base = save_checkpoint("gpt2", tmp_path / "base")
    write_random(tmp_path / "it", jaxformer.load(base), QUERIES)
    path = tmp_path / "it" / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(error, match=message):
        jaxformer.load(base, adapter=tmp_path / "it")


def test_an_adapter_of_another_model(tmp_path):
    llama, gpt2 = (save_checkpoint(kind, tmp_path / kind) for kind in ("llama", "gpt2"))
    model = jaxformer.load(llama)
    write_random(tmp_path / "it", model, QUERIES)
    with pytest.raises(DataError, match=r"does not fit the model: model.layers.0.self_attn.q_proj"):
        jaxformer.load(gpt2, adapter=tmp_path / "it")
    write_run(tmp_path / "plain", Config(model.config, DataConfig()), 3, model.parameters)
    with pytest.raises(ConfigError, match="trained no low-rank factors"):
        export_adapter(tmp_path / "plain", tmp_path / "out")
    with pytest.raises(ConfigError, match="base_model_name_or_path = None: must be the folder"):
        jaxformer.load(tmp_path / "it")
    (tmp_path / "it" / "adapter_model.safetensors").unlink()
    with pytest.raises(DataError, match=r"has no adapter_model\.safetensors"):
        jaxformer.load(llama, adapter=tmp_path / "it")
