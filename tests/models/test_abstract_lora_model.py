"""Low-rank factors: the same model at the start, the textbook's product, the right gradients."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import (
    batch_for,
    random_parameters,
    structure_of,
    tiny,
    tiny_encoder,
    tiny_encoder_decoder,
    tiny_vision,
)

from jaxformer.distributed.sharding import RULES
from jaxformer.errors import ConfigError
from jaxformer.models.lora import AbstractLoraModel, LoRA, adapted, is_factor
from jaxformer.nn import UnusedCrossAttention
from jaxformer.optim.parameter_roles import Matrix, matrix

pytestmark = pytest.mark.more

EVERY_KERNEL = LoRA(rank=3, alpha=7.0, targets=("*.kernel",))
MODELS = {
    "grouped heads": tiny(num_layers=4, windows=(3, None)),
    "a head of its own": tiny(tie_embeddings=False, **{"feed_forward.gated": False}),
    "shared layers": tiny_encoder(num_layers=2, layer_repeats=2, **{"embeddings.dim": 12}),
    "encoder-decoder": tiny_encoder_decoder(),
    "vision": tiny_vision(),
}
each_model = pytest.mark.parametrize("config", MODELS.values(), ids=MODELS.keys())


def lora_of(config, lora=EVERY_KERNEL):
    return AbstractLoraModel(structure_of(config), lora)


def random_factors(config, abstract_model):
    """Parameters in which neither factor is zero."""
    random = np.random.default_rng(1)
    factors = {
        name: jnp.asarray(0.3 * random.normal(size=shape.shape), jnp.float32)
        for name, shape in abstract_model.shapes.items()
        if is_factor(name)
    }
    return random_parameters(config) | factors


def products(abstract_model, parameters):
    """Every adapted kernel by plain matrix products, one layer at a time, in float64."""
    plain = {}
    for name in abstract_model.targets:
        kernel, a, b = (
            np.asarray(parameters[name + suffix], np.float64)
            for suffix in ("", ".lora_a", ".lora_b")
        )
        stacked = abstract_model.base.axes[name][0] == "layers"
        layers = zip(kernel, a, b, strict=True) if stacked else [(kernel, a, b)]
        rank, scale = abstract_model.lora.rank, abstract_model.lora.alpha / abstract_model.lora.rank
        done = [
            k + scale * (x.reshape(-1, rank) @ y.reshape(rank, -1)).reshape(k.shape)
            for k, x, y in layers
        ]
        plain[name] = np.stack(done) if stacked else done[0]
    return plain


def test_kernels_that_do_not_learn_get_no_factors():
    plain, other = tiny(), tiny(block=UnusedCrossAttention())
    assert lora_of(other).targets == lora_of(plain).targets
    assert len(structure_of(other).kernels) == len(structure_of(plain).kernels) + 4
    assert structure_of(other).learning == structure_of(plain).learning


def test_training_starts_from_the_very_same_model():
    config = MODELS["grouped heads"]
    base, abstract_model = structure_of(config), lora_of(config)
    parameters = abstract_model.init(jax.random.key(3))
    expected = base.init(jax.random.key(3))
    factors = {name for name in parameters if is_factor(name)}
    assert len(factors) == 2 * len(base.kernels)
    assert set(parameters) - factors == set(expected)
    merged = abstract_model.merged(parameters)
    for name, wanted in expected.items():
        np.testing.assert_array_equal(merged[name], wanted, err_msg=name)
    for name in abstract_model.targets:
        a, layers = np.asarray(parameters[name + ".lora_a"]), expected[name].shape[0]
        assert not np.asarray(parameters[name + ".lora_b"]).any()
        inputs = a.size / a.shape[-1] / layers
        assert np.std(a) * inputs**0.5 == pytest.approx(1.0, abs=4 / a.size**0.5), name


@each_model
@pytest.mark.quick("grouped heads", "a head of its own", "encoder-decoder", "vision")
def test_factors_multiply_out_as_in_the_paper(config):
    abstract_model = lora_of(config)
    parameters = random_factors(config, abstract_model)
    merged = jax.jit(abstract_model.merged)(parameters)
    assert set(merged) == set(abstract_model.base.shapes)
    expected = products(abstract_model, parameters)
    for name, value in merged.items():
        wanted = expected.get(name, parameters[name])
        np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-5, err_msg=name)
        assert (name in expected) == (np.asarray(value) != parameters[name]).any()


@pytest.mark.slow
def test_gradients_of_the_factors_follow_from_that_of_the_kernel():
    config = tiny(num_layers=4, windows=(3, None))
    abstract_model = lora_of(config)
    parameters, batch = random_factors(config, abstract_model), batch_for(config)

    def loss(module):
        module.dtype = jnp.dtype("float64")
        return module.loss(batch)[1]["language_model"].loss / 50.0

    @jax.jit
    def gradients(parameters, merged):
        return (
            jax.grad(lambda p: loss(abstract_model.module(p)))(parameters),
            jax.grad(lambda p: loss(abstract_model.base.module(p)))(merged),
        )

    with jax.enable_x64(True):
        parameters = jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), parameters)
        ours, plain = gradients(parameters, parameters | products(abstract_model, parameters))
    scale = abstract_model.lora.alpha / abstract_model.lora.rank
    for name in abstract_model.targets:
        a, b = (np.asarray(parameters[name + s], np.float64) for s in (".lora_a", ".lora_b"))
        for layer in range(a.shape[0]):
            rank = abstract_model.lora.rank
            a2, b2 = a[layer].reshape(-1, rank), b[layer].reshape(rank, -1)
            kernel = np.asarray(plain[name][layer], np.float64).reshape(len(a2), -1)
            for suffix, wanted in ((".lora_a", kernel @ b2.T), (".lora_b", a2.T @ kernel)):
                actual = ours[name + suffix][layer]
                np.testing.assert_allclose(
                    actual, scale * wanted.reshape(actual.shape), rtol=1e-4, atol=1e-6
                )


@settings(max_examples=8)
@given(
    layers=st.integers(0, 3),
    inputs=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    outputs=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    rank=st.integers(1, 4),
)
def test_any_number_of_axes(layers, inputs, outputs, rank):
    random = np.random.default_rng(0)
    lead = [layers] if layers else []
    kernel = random.normal(size=[*lead, *inputs, *outputs])
    a, b = random.normal(size=[*lead, *inputs, rank]), random.normal(size=[*lead, rank, *outputs])
    layer, rest = ("l", "l") if layers else ("", "")
    letters = f"{layer}{'abc'[: len(inputs)]}r,{rest}r{'xyz'[: len(outputs)]}->"
    letters += f"{layer}{'abc'[: len(inputs)]}{'xyz'[: len(outputs)]}"
    expected = kernel + 0.5 * np.einsum(letters, a, b)
    actual = adapted(*(jnp.asarray(array, jnp.float32) for array in (kernel, a, b)), 0.5)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


@each_model
def test_factors_live_where_their_kernels_axes_do(config):
    abstract_model = lora_of(config)
    for name in abstract_model.targets:
        axes, kernel = abstract_model.base.axes[name], abstract_model.base.shapes[name].shape
        a, b = abstract_model.axes[name + ".lora_a"], abstract_model.axes[name + ".lora_b"]
        assert a[-1] == "rank"
        layers = [axis for axis in axes if axis == "layers"]
        assert b[len(layers)] == "rank"
        assert [*a[:-1], *[axis for axis in b if axis not in ("layers", "rank")]] == [*axes]
        sizes = abstract_model.shapes[name + ".lora_a"].shape[:-1]
        assert sizes == kernel[: len(sizes)]
        assert abstract_model.base.kernels[name] == len(a) - 1 - len(layers)
    assert RULES["rank"] is None
    assert {axis for names in abstract_model.axes.values() for axis in names} <= set(RULES)


def test_what_learns_and_what_stays():
    config = tiny_encoder()
    abstract_model = lora_of(config, LoRA())
    factors = {name for name in abstract_model.learning if is_factor(name)}
    ends = {re.search(r"(\w+\.kernel)\.lora", name)[1] for name in factors}
    assert ends == {"query.kernel", "value.kernel"}
    assert set(abstract_model.learning) == factors
    older = LoRA(trained=("heads.*", "pooler.*"))
    others = {name.split(".")[0] for name in set(lora_of(config, older).learning) - factors}
    assert others == {"heads", "pooler"}
    # A decoder has neither; runs of older versions have these patterns all the same.
    assert all(map(is_factor, lora_of(tiny(), older).learning))


def test_names_of_targets():
    base = structure_of(tiny_encoder())
    for targets, exclude, wanted in (
        (("query", "*.value.kernel"), (), {"query", "value"}),
        (("all-linear",), ("output", "*.down.kernel"), {"query", "key", "value", "up"}),
    ):
        lora = LoRA(targets=targets, exclude=exclude)
        found = {name.split(".")[-2] for name in AbstractLoraModel(base, lora).targets}
        assert found - {"pooler"} == wanted


@pytest.mark.parametrize(
    ("lora", "message"),
    [
        (
            LoRA(targets=("*.qeury.kernel",)),
            r"matches no parameter; did you mean '\*.query.kernel'",
        ),
        (LoRA(targets=("q_proj",)), r"the kernels are .*\*.query.kernel, \*.value.kernel"),
        (LoRA(exclude=("q_proj",)), r"lora.exclude: 'q_proj' matches no parameter"),
        (LoRA(exclude=("query", "value")), r"lora.targets = .* must select at least one kernel"),
        (
            LoRA(targets=("*.query.*",)),
            r"query.bias, which is not a kernel; did you mean '\*.query.k",
        ),
        (LoRA(targets=("embedding.*",)), "embedding.table, which is not a kernel"),
        (
            LoRA(trained=("embeding.*",)),
            "trained: 'embeding.*' matches no parameter; there are emb",
        ),
    ],
)
def test_patterns_that_cannot_be_meant(lora, message):
    with pytest.raises(ConfigError, match=message):
        lora_of(tiny_encoder(), lora)


def test_an_optimizer_sees_a_matrix_in_every_factor():
    assert matrix("a", ("layers", "embed", "rank")) == Matrix((1,), (2,))
    assert matrix("a", ("layers", "heads", "head_dim", "rank")) == Matrix((1, 2), (3,))
    assert matrix("b", ("rank", "heads", "head_dim")) == Matrix((0,), (1, 2))
    abstract_model = lora_of(tiny_vision())
    for name, axes in abstract_model.axes.items():
        assert not is_factor(name) or matrix(name, axes) is not None, name
