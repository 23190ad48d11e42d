"""Adapters that PEFT writes give its logits here, and those written here give ours there."""

import json
import re

import jax.numpy as jnp
import numpy as np
import pytest

import jaxformer
from jaxformer.checkpoints.saved_run import write_run
from jaxformer.cli import main as cli
from jaxformer.config import Config, TrainConfig
from jaxformer.data import DataConfig
from jaxformer.errors import ConfigError, DataError
from jaxformer.hub.peft.config import PeftConfig, read_peft_config, task_of
from jaxformer.hub.peft.files import Adapter, Factors, write_adapter
from jaxformer.models.lora import LoRA, abstract_model_of, adapted
from jaxformer.pretrained.export.adapter import export_adapter
from jaxformer.training.transfer.origin import open_named

pytestmark = pytest.mark.torch

peft = pytest.importorskip("peft")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from hf_checkpoints import save_checkpoint  # noqa: E402

_NEOX = {"vocab_size": 60, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 6}
_FALCON = _NEOX | {"num_kv_heads": 2, "new_decoder_architecture": True, "ffn_hidden_size": 80}
_NEOX |= {"intermediate_size": 80, "max_position_embeddings": 64}
CASES = {
    "llama": (["q_proj", "v_proj", "down_proj"], {}),
    "gpt2": (["c_attn", "c_fc"], {"fan_in_fan_out": True}),
    "bert_classifier": ("all-linear", {"task_type": "SEQ_CLS"}),
    "t5": (["q", "v", "wo"], {"use_rslora": True}),
    "neox": (["query_key_value"], {}),
    "falcon": (["query_key_value", "dense"], {"rank_pattern": {"dense": 2}}),
}
"""PEFT's targets, and its other settings."""


@pytest.fixture(scope="module", params=CASES)
def base(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("base") / request.param
    if request.param in ("neox", "falcon"):
        name, fields = {"neox": ("GPTNeoX", _NEOX), "falcon": ("Falcon", _FALCON)}[request.param]
        model_class = getattr(transformers, f"{name}ForCausalLM")
        torch.manual_seed(0)
        model_class(model_class.config_class(**fields)).save_pretrained(folder)
        return request.param, folder
    return request.param, save_checkpoint(request.param, folder)


def torch_model(folder):
    name = json.loads((folder / "config.json").read_text())["architectures"][0]
    return getattr(transformers, name).from_pretrained(folder).eval()


def inputs_of(folder):
    random = np.random.default_rng(0)
    ids = random.integers(5, 50, size=(2, 7))
    values = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    if json.loads((folder / "config.json").read_text())["model_type"] == "t5":
        values["decoder_input_ids"] = random.integers(5, 50, size=(2, 5))
    return values


def torch_logits(model, folder):
    with torch.no_grad():
        return model(**{n: torch.tensor(x) for n, x in inputs_of(folder).items()}).logits.numpy()


def scrambled(model):
    """No factor is zero, and no head is that of the base."""
    torch.manual_seed(1)
    for name, parameter in model.named_parameters():
        if "lora_" in name or "modules_to_save" in name:
            parameter.data.normal_(std=0.2)
    return model.eval()


@pytest.mark.quick("llama", "t5")
def test_adapters_of_peft(base, tmp_path):
    name, folder = base
    targets, options = CASES[name]
    config = peft.LoraConfig(r=3, lora_alpha=5, target_modules=targets, **options)
    theirs = scrambled(peft.get_peft_model(torch_model(folder), config))
    theirs.save_pretrained(tmp_path / "adapter")
    ours = jaxformer.load(folder, adapter=tmp_path / "adapter")
    logits = jaxformer.forward(ours, inputs_of(folder))["logits"]
    np.testing.assert_allclose(logits, torch_logits(theirs, folder), rtol=1e-4, atol=1e-5)
    without = jaxformer.forward(jaxformer.load(folder), inputs_of(folder))["logits"]
    assert np.abs(logits - without).max() > 0.01


def random_adapter(model, kernels, rank):
    """Factors of some kernels, none of them zero, and other values of a head over labels."""
    random, abstract_model = np.random.default_rng(2), model.abstract_model
    factors = {}
    for name, shape in abstract_model.shapes.items():
        if name in abstract_model.kernels and re.search(f"^(?!heads.label).*{kernels}", name):
            layers = int(".stack." in name)
            inputs = layers + abstract_model.kernels[name]
            lead, sides = shape.shape[:layers], (shape.shape[layers:inputs], shape.shape[inputs:])
            a, b = (*lead, *sides[0], rank), (*lead, rank, *sides[1])
            arrays = (random.normal(size=s).astype(np.float32) * 0.2 for s in (a, b))
            factors[name] = Factors(*arrays, 5 / rank)
    whole = {
        name: random.normal(size=shape.shape).astype(np.float32)
        for name, shape in abstract_model.shapes.items()
        if name.startswith("heads.label.")
    }
    return Adapter(factors, whole)


@pytest.mark.parametrize("kernels", [r"(query|value)\.kernel", r"(value|output|down)\.kernel"])
@pytest.mark.quick("t5-*")
def test_adapters_for_peft(base, kernels, tmp_path):
    name, folder = base
    model = jaxformer.load(folder)
    adapter = random_adapter(model, kernels, rank=2)
    task = task_of(model.checkpoint.architecture.name)
    config = PeftConfig(2, 5.0, use_rslora=False, base=str(folder), task=task)
    written = write_adapter(tmp_path, adapter, model.placements, config)
    theirs = peft.PeftModel.from_pretrained(torch_model(folder), tmp_path).eval()
    model = jaxformer.load(folder, adapters={"it": tmp_path})
    ours = model.with_adapters("it")
    logits = jaxformer.forward(ours, inputs_of(folder))["logits"]
    np.testing.assert_allclose(logits, torch_logits(theirs, folder), rtol=1e-4, atol=1e-5)
    for kernel, (a, b, scale) in adapter.factors.items():
        expected = adapted(model.parameters[kernel], a, b, scale)
        np.testing.assert_allclose(ours.parameters[kernel], expected, rtol=1e-5, atol=1e-6)
        assert scale == 2.5
        assert a.any()
        assert b.any()
    changed = {n for n, x in ours.parameters.items() if x is not model.parameters[n]}
    fused = name in ("gpt2", "neox", "falcon")
    assert changed >= {*adapter.factors, *adapter.replaced}
    # All parts of a fused tensor have factors, some of them zero.
    assert fused or changed == {*adapter.factors, *adapter.replaced}
    assert written.fan_in_fan_out == (name == "gpt2")
    assert read_peft_config(tmp_path).base == str(folder)


def adapted_run(folder, base):
    """A run as training leaves it, with factors that are not zero."""
    model, random = jaxformer.load(base), np.random.default_rng(3)
    lora = LoRA(rank=2, alpha=5.0)
    config = Config(model.config, DataConfig(), train=TrainConfig(lora=lora), init_from=str(base))
    structure = abstract_model_of(model.config, lora)
    parameters = dict(model.parameters)
    for name in structure.learning:
        values = 0.2 * random.normal(size=structure.shapes[name].shape)
        parameters[name] = jnp.asarray(values, jnp.float32)
    write_run(folder, config, 3, parameters)
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
    expected = torch_logits(theirs, base)
    logits = jaxformer.forward(jaxformer.load(run), inputs_of(base))["logits"]
    np.testing.assert_allclose(logits, expected, atol=1e-5)
    if kind == "gpt2":
        assert cli.main(["export", str(run), str(merged)]) == 0
        np.testing.assert_allclose(torch_logits(torch_model(merged), base), expected, atol=1e-5)
    # The adapter names its base, and so is a model of its own here.
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
    folders = {}
    for name, rank in (("a", 2), ("b", 3)):
        model = jaxformer.load(base)
        adapter = random_adapter(model, r"query\.kernel" if name == "a" else r"kernel", rank)
        folders[name] = tmp_path / name
        folders[name].mkdir()
        write_adapter(folders[name], adapter, model.placements, PeftConfig(rank, 5.0))
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
    model = jaxformer.load(base)
    (tmp_path / "it").mkdir()
    adapter = random_adapter(model, r"query\.kernel", 2)
    write_adapter(tmp_path / "it", adapter, model.placements, PeftConfig(2, 5.0))
    path = tmp_path / "it" / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(error, match=message):
        jaxformer.load(base, adapter=tmp_path / "it")


def plain_run(folder, model):
    write_run(folder, Config(model.config, DataConfig()), 3, model.parameters)
    return folder


def test_an_adapter_of_another_model(tmp_path):
    llama, gpt2 = (save_checkpoint(kind, tmp_path / kind) for kind in ("llama", "gpt2"))
    model = jaxformer.load(llama)
    (tmp_path / "it").mkdir()
    adapter = random_adapter(model, r"query\.kernel", 2)
    write_adapter(tmp_path / "it", adapter, model.placements, PeftConfig(2, 5.0))
    with pytest.raises(DataError, match=r"does not fit the model: model.layers.0.self_attn.q_proj"):
        jaxformer.load(gpt2, adapter=tmp_path / "it")
    with pytest.raises(ConfigError, match="trained no low-rank factors"):
        export_adapter(plain_run(tmp_path / "plain", model), tmp_path / "out")
    with pytest.raises(ConfigError, match="base_model_name_or_path = None: must be the folder"):
        jaxformer.load(tmp_path / "it")
    (tmp_path / "it" / "adapter_model.safetensors").unlink()
    with pytest.raises(DataError, match=r"has no adapter_model\.safetensors"):
        jaxformer.load(llama, adapter=tmp_path / "it")
