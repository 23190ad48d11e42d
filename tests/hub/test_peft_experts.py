"""Factors of experts: adapters of PEFT, adapters for PEFT, and gradients are those of PEFT."""

import jax
import jax.numpy as jnp
import numpy as np
import peft_models
import pytest
from peft_models import adapter_of, logits_of, random_arrays, trained, write_random

import jaxformer
from jaxformer.errors import DataError
from jaxformer.hub.peft.config import PeftConfig, read_peft_config
from jaxformer.hub.peft.experts import Pair, module_of, parameter_of
from jaxformer.hub.peft.files import TENSORS, write_adapter
from jaxformer.hub.weights.views.fused_experts import FUSED
from jaxformer.models.lora import LoRA, abstract_model_of, adapted
from jaxformer.parity.reference import save_random
from jaxformer.zoo import FORMATS

KINDS = ("mixtral", "qwen3_moe", "olmoe", "gpt_oss")
IDS = np.random.default_rng(0).integers(6, 131, (3, 9))
INPUTS = {"input_ids": IDS}
BOTH = ["experts.gate_up_proj", "experts.down_proj"]
ROUTERS = {"gpt_oss": "router.weight"}


@pytest.fixture(scope="module", params=KINDS)
def base(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("base") / request.param
    save_random(request.param, FORMATS[request.param].architectures[0].name, folder)
    return request.param, folder


def test_the_factors_of_a_file_are_those_of_each_expert():
    random = np.random.default_rng(0)
    pair = Pair(random.normal(size=(4, 2, 5)), random.normal(size=(4, 7, 2)))
    a, b = pair.of_all
    assert (a.shape, b.shape) == ((8, 5), (7, 8))
    for expert in range(4):  # the order of PEFT
        np.testing.assert_array_equal(a[2 * expert : 2 * expert + 2], pair.a[expert])
        np.testing.assert_array_equal(b[:, expert::4], pair.b[expert])
    for found, expected in zip(Pair.of_file(a, b, 4), pair, strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("targeted", [BOTH, ["gate_up_proj"], ["mlp.experts.down_proj"]])
def test_the_names_of_a_file_are_those_of_peft(targeted):
    path = "model.layers.1.mlp.experts"
    names = [f"{path}.{name}" for name in FUSED if any(end.endswith(name) for end in targeted)]
    for name, wrapper in zip(reversed(names), ("", ".base_layer"), strict=False):
        assert module_of(name, names) == path + wrapper
        assert parameter_of(path + wrapper, targeted) == name
    assert parameter_of("model.layers.1.mlp.gate", targeted) is None
    assert parameter_of(f"{path}.base_layer.base_layer", targeted) is None


def torch_model(folder):
    return peft_models.torch_model(folder, dtype="float32", experts_implementation="eager")


def check(ours, theirs):
    expected = logits_of(theirs, INPUTS)
    logits = jaxformer.forward(ours, INPUTS)["logits"]
    np.testing.assert_allclose(logits, expected, atol=1e-5 * np.abs(expected).max())


def settings(kind):
    """What PEFT adapts, and how."""
    router = ROUTERS.get(kind, "gate.weight")
    yield {"target_parameters": BOTH, "target_modules": ["q_proj"]}
    yield {"target_parameters": ["gate_up_proj", router], "use_rslora": True}
    yield {"target_parameters": BOTH[1:], "rank_pattern": {"layers.1.mlp.experts.down_proj": 2}}
    if kind != "gpt_oss":
        yield {"target_modules": "all-linear"}


@pytest.mark.torch
@pytest.mark.more
@pytest.mark.quick("gpt_oss")
def test_adapters_of_peft(base, tmp_path):
    peft = pytest.importorskip("peft")
    kind, folder = base
    plain = logits_of(torch_model(folder), INPUTS)
    for number, options in enumerate(settings(kind)):
        config = peft.LoraConfig(r=3, lora_alpha=5, **({"target_modules": []} | options))
        theirs = trained(torch_model(folder), config, tmp_path / str(number))
        assert np.abs(logits_of(theirs, INPUTS) - plain).max() > 0.01
        check(jaxformer.load(folder, adapter=tmp_path / str(number)), theirs)


@pytest.mark.torch
@pytest.mark.more
@pytest.mark.quick("gpt_oss-targets0", "mixtral-targets0", "olmoe-targets2")
@pytest.mark.parametrize(
    "targets",
    [("gate", "up", "down", "query"), ("up", "router"), ("down",), ("*.group.0.*.gate.kernel",)],
)
def test_adapters_for_peft(base, targets, tmp_path):
    peft = pytest.importorskip("peft")
    _, folder = base
    model, lora = jaxformer.load(folder), LoRA(rank=2, alpha=5.0, targets=targets)
    adapter, _ = write_random(tmp_path, model, lora, folder)
    theirs = peft.PeftModel.from_pretrained(torch_model(folder), tmp_path).eval()
    ours = jaxformer.load(folder, adapter=tmp_path)
    for name, (a, b, scale) in adapter.factors.items():
        expected = adapted(model.parameters[name], a, b, scale)
        np.testing.assert_allclose(ours.parameters[name], expected, rtol=1e-5, atol=1e-6)
    check(ours, theirs)


def gradients_of(model, lora):
    """The structure, and the gradients of our factors."""
    config = model.config.with_fields(**{"compute_dtype": "float32", "feed_forward.losses": ()})
    structure = abstract_model_of(config, lora)
    batch = {"inputs": IDS[:, :-1], "targets": IDS[:, 1:], "weights": np.ones((3, 8))}
    batch = {name: jnp.asarray(x, jnp.int32) for name, x in batch.items()}
    batch |= {"weights": batch["weights"].astype(jnp.float32)}

    def loss(factors):
        _, sums = structure.module(model.parameters | factors).loss(batch)
        return sum(each.loss for each in sums.values()) / batch["weights"].size

    return structure, jax.jit(jax.grad(loss))(random_arrays(model, lora))


@pytest.mark.torch
@pytest.mark.more
@pytest.mark.quick("mixtral")
def test_gradients_are_those_of_peft(base, tmp_path):
    """Both gradients as if they were adapters; PEFT's has more, in the blocks that are zero."""
    peft, torch = pytest.importorskip("peft"), pytest.importorskip("torch")
    from safetensors.numpy import load_file

    _, folder = base
    model = jaxformer.load(folder)
    lora = LoRA(rank=2, alpha=5.0, targets=("gate", "up", "down", "router", "query"))
    start, own, other = (tmp_path / name for name in ("start", "ours", "theirs"))
    own.mkdir()
    _, config = write_random(start, model, lora, folder)
    theirs = peft.PeftModel.from_pretrained(torch_model(folder), start, is_trainable=True)
    ids = torch.tensor(IDS)
    theirs(input_ids=ids, labels=ids).loss.backward()
    for parameter in theirs.parameters():
        if parameter.requires_grad:
            parameter.data.copy_(parameter.grad)
    theirs.save_pretrained(other)
    structure, found = gradients_of(model, lora)
    write_adapter(own, adapter_of(structure, found, 1.0), model.placements, config)
    start, own, other = (
        {n.replace(".block_sparse_moe.", ".mlp."): x for n, x in load_file(at / TENSORS).items()}
        for at in (start, own, other)
    )
    assert own.keys() == other.keys()
    for name, expected in other.items():
        kept = np.where(start[name] == 0, 0, expected)
        scale = np.abs(expected).max()
        np.testing.assert_allclose(own[name], kept, atol=1e-5 * scale, err_msg=name)
        assert scale > 0


@pytest.mark.torch
def test_adapters_of_linear_layers_of_each_expert(tmp_path):
    """Such are the files of transformers 4, which PEFT converts."""
    peft = pytest.importorskip("peft")
    from safetensors.numpy import save_file

    folder, adapter = tmp_path / "base", tmp_path / "adapter"
    save_random("mixtral", "MixtralForCausalLM", folder)
    adapter.mkdir()
    config = PeftConfig(2, 3.0, base=str(folder), task="CAUSAL_LM", targets=("w1", "w2", "w3"))
    config.write(adapter)
    model, random, tensors = jaxformer.load(folder), np.random.default_rng(0), {}
    for placement in model.placements:
        if ".experts." in placement.tensor:
            outputs, inputs = placement.shape
            module = "base_model.model." + placement.tensor.removesuffix(".weight")
            for side, shape in {"A": (2, inputs), "B": (outputs, 2)}.items():
                drawn = random.normal(0, 0.2, shape).astype(np.float32)
                tensors[f"{module}.lora_{side}.weight"] = drawn
    save_file(tensors, adapter / TENSORS)
    theirs = peft.PeftModel.from_pretrained(torch_model(folder), adapter).eval()
    check(jaxformer.load(folder, adapter=adapter), theirs)


@pytest.mark.torch
def test_factors_for_another_number_of_experts_are_refused(tmp_path):
    from safetensors.numpy import load_file, save_file

    folder, file = tmp_path / "base", tmp_path / TENSORS
    save_random("qwen3_moe", "Qwen3MoeForCausalLM", folder)
    write_random(tmp_path, jaxformer.load(folder), LoRA(rank=2, targets=("down",)), folder)
    assert read_peft_config(tmp_path).parameters == ("experts.down_proj",)
    cut = {name: x[:8] if "lora_A" in name else x[:, :8] for name, x in load_file(file).items()}
    save_file(cut, file)
    with pytest.raises(DataError, match="6 experts"):
        jaxformer.load(folder, adapter=tmp_path)
