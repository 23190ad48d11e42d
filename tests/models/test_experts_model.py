"""Decoders with experts: losses and metrics in training, padding, generation, adapters."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_models import (
    batch_for,
    random_parameters,
    structure_of,
    tiny,
    tiny_encoder,
    tiny_encoder_decoder,
)
from train_steps import program_of, stepped

from jaxformer.errors import ConfigError
from jaxformer.functional import (
    SigmoidTopK,
    balance_loss,
    expert_load,
    within_capacity,
)
from jaxformer.functional.activations import with_cache
from jaxformer.functional.losses.terms import collect_terms, with_products
from jaxformer.models.lora import LoRA, abstract_model_of
from jaxformer.nn import BalanceLoss, Experts, SharedExpert, ZLoss
from jaxformer.optim import SGD, Constant

LOSSES = (BalanceLoss(weight=0.3, over="all_layers"), ZLoss(weight=0.2))
SIZES = {"num_layers": 2, "model_dim": 24, "num_heads": 6, "num_kv_heads": 2, "mlp_dim": 20}
EXPERTS = Experts(num=5, per_token=2, losses=LOSSES)


def config_with(experts=EXPERTS, **changes):
    return tiny(**({"feed_forward": experts, "vocab_size": 32} | SIZES | changes))


def model_of(config):
    return structure_of(config).module(random_parameters(config))


def padded_batch(config, rows=8):
    found = batch_for(config, rows=rows)
    batch = {name: found[name] for name in config.batch_spec(rows, {"inputs": 7})}
    segments = np.ones((rows, batch["inputs"].shape[1]), np.int32)
    segments[: rows // 2, 4:] = 0
    return batch | {"segments": jnp.asarray(segments)}


def terms_and_routing(config):
    """The terms of the loss; what is real; the logits of each layer's router, and its load."""
    model, batch = model_of(config), padded_batch(config)
    _, terms = jax.jit(collect_terms(model.loss))(batch)
    _, cache = jax.jit(with_cache(model.outputs, "*.hook_router_logits"))(batch)
    real, logits = batch["segments"] > 0, list(cache.values())
    loads = [
        expert_load(jax.nn.softmax(each), config.feed_forward.router(each, 2).experts, real)
        for each in logits
    ]
    return terms, real, logits, loads


def test_losses_and_metrics_are_those_of_all_layers_without_padding():
    terms, real, logits, loads = terms_and_routing(config_with())
    terms = with_products(terms)
    total = jax.tree.map(lambda *parts: sum(parts), *loads)
    np.testing.assert_allclose(terms["loss", "balance_loss"], balance_loss(total), rtol=1e-5)
    np.testing.assert_allclose(
        terms["weighted", "balance_loss"], 0.3 * balance_loss(total), rtol=1e-5
    )
    squares = [np.log(np.exp(np.asarray(z)[real]).sum(-1)) ** 2 for z in logits]
    expected = sum(each.mean() for each in squares)
    np.testing.assert_allclose(terms["loss", "router_z_loss"], expected, rtol=1e-5)
    loads = [5 * load.routed.max() / load.routed.sum() for load in loads]
    np.testing.assert_allclose(
        terms["metric", "expert_load"] / terms["count", "expert_load"], np.mean(loads), rtol=1e-5
    )
    entropies = []
    for each in logits:
        z = np.asarray(each, np.float64)[real]  # without padding
        p = np.exp(z) / np.exp(z).sum(-1, keepdims=True)
        entropies.append(-np.sum(p * np.log(p), axis=-1).mean())
    found = terms["metric", "router_entropy"] / terms["count", "router_entropy"]
    np.testing.assert_allclose(found, np.mean(entropies), rtol=1e-5)


def test_the_loss_of_each_layer_is_that_of_switch_transformers():
    experts = Experts(num=5, losses=(BalanceLoss(weight=0.3),))
    terms, _, _, loads = terms_and_routing(config_with(experts))
    expected = sum(map(balance_loss, loads))
    np.testing.assert_allclose(terms["loss", "balance_loss"], expected, rtol=1e-5)


def step_on(sizes=(1, 1, 1)):
    """The parameters after a step, and its metrics."""
    config = config_with(model_dim=24, num_heads=4, num_kv_heads=4, scan_layers=True)
    optimizer = SGD(schedule=Constant(learning_rate=1.0, warmup_steps=0), momentum=0.0)
    program = program_of(config, sizes, optimizer, steps=3, clip_norm=None)
    state, (metrics,) = stepped(program, padded_batch(config))
    return jax.device_get(state.params), metrics


@pytest.mark.more
@pytest.mark.parametrize("sizes", [(2, 2, 2), (1, 8, 1), (1, 2, 4)])
@pytest.mark.quick("sizes2")
def test_a_step_on_a_mesh_is_that_of_one_device(sizes):
    params, metrics = step_on()
    cut, cut_metrics = step_on(sizes)
    assert {"balance_loss", "router_z_loss", "expert_load", "router_entropy"} <= set(metrics)
    for name, value in metrics.items():
        np.testing.assert_allclose(cut_metrics[name], value, rtol=2e-5, err_msg=name)
    for name, value in params.items():
        np.testing.assert_allclose(cut[name], value, atol=1e-5, err_msg=name)


@pytest.mark.slow
@pytest.mark.quick("full")
@pytest.mark.parametrize("remat", ["dots", "full"])
def test_scanned_and_rematerialised_layers_are_the_same(remat):
    plain = config_with()
    parameters, batch = random_parameters(plain), padded_batch(plain)

    def gradients(config):
        def total(parameters):
            model = structure_of(config).module(parameters)
            (_, sums), terms = collect_terms(model.loss)(batch)
            added = [x for (kind, _), x in with_products(terms).items() if kind == "weighted"]
            return sum(each.loss for each in sums.values()) / 40 + sum(added)

        return jax.jit(jax.grad(total))(parameters)

    expected = gradients(plain)
    found = gradients(config_with(remat=remat, scan_layers=not plain.scan_layers))
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, atol=2e-5, err_msg=name)
        assert np.abs(value).max() > 0, name


@pytest.mark.more
def test_a_capacity_drops_tokens_of_whole_rows_and_logs_their_share():
    config = config_with(replace(EXPERTS, capacity=0.6))
    model, batch = model_of(config), padded_batch(config)
    _, terms = jax.jit(collect_terms(model.loss))(batch)
    _, indices = jax.jit(with_cache(model.outputs, "*.hook_expert_indices"))(batch)
    real = batch["segments"] > 0
    shares = [
        1 - within_capacity(each, 5, 0.6, real).sum() / (2 * real.sum())
        for each in indices.values()
    ]
    found = terms["metric", "dropped_tokens"] / terms["count", "dropped_tokens"]
    np.testing.assert_allclose(found, np.mean(shares), rtol=1e-5)
    assert 0.2 < found < 0.8
    generous, free = (
        model_of(config_with(replace(EXPERTS, capacity=each))) for each in (5.0, None)
    )
    loss = jax.jit(lambda model: model.loss(batch)[1]["language_model"].loss)
    np.testing.assert_array_equal(loss(generous), loss(free))
    assert abs(loss(model) - loss(free)) > 1e-3


def test_products_are_those_of_the_experts_of_a_token():
    experts = Experts(num=5, per_token=2, shared=SharedExpert(dim=14))
    config = config_with(experts)
    router, routed, shared = 24 * 5, 3 * 2 * 24 * 20, 3 * 24 * 14
    assert experts.products(config) == router + routed + shared


@pytest.mark.parametrize("make", [tiny, tiny_encoder, tiny_encoder_decoder])
def test_the_first_layers_of_every_family_may_be_dense(make):
    experts = Experts(num=5, per_token=2, dim=6, dense_layers=1, losses=())
    apart = {"num_layers": 2, "windows": (None, None)}
    config, all_experts = (
        make(feed_forward=replace(experts, dense_layers=dense), **apart) for dense in (1, 0)
    )
    shapes = structure_of(config).shapes
    routed = {name.partition(".sublayers")[0] for name in shapes if "router" in name}
    groups = {name.partition(".sublayers")[0] for name in shapes if ".sublayers" in name}
    assert groups - routed == {group for group in groups if group.endswith("group.0")}
    ups = [name for name in shapes if "group.0" in name and name.endswith("up.kernel")]
    assert [shapes[name].shape for name in ups] == [(1, 20, 14)] * len(config.stacks)
    lengths = {"inputs": 6, "decoder_inputs": 6}
    saved = experts.products(config) - experts.first_layers[0].products(config)
    fewer = all_experts.flops(lengths).products - config.flops(lengths).products
    assert fewer == 2 * saved * len(config.stacks)
    with pytest.raises(ConfigError, match="windows"):
        make(feed_forward=experts, num_layers=2)


def test_adapters_leave_out_experts_unless_they_are_named():
    config = config_with()
    names = abstract_model_of(config, LoRA(targets=("all-linear",))).targets
    assert names
    assert not any("sublayers.1" in name for name in names)
    lora = LoRA(rank=3, targets=("all-linear", "gate", "down"))
    structure = abstract_model_of(config, lora)
    experts = set(structure.targets) - set(names)
    assert {name.split(".")[-2] for name in experts} == {"gate", "down"}
    for name in experts:
        layers, num, inputs, outputs = structure.shapes[name].shape
        assert structure.shapes[f"{name}.lora_a"].shape == (layers, num, inputs, 3)
        assert structure.shapes[f"{name}.lora_b"].shape == (layers, num, 3, outputs)
    with pytest.raises(ConfigError, match=r"train\.lora\.dropout"):
        abstract_model_of(config, replace(lora, dropout=0.1))


def test_factors_of_experts_give_the_outputs_of_merged_kernels():
    config = config_with(EXPERTS, scan_layers=True)
    structure = abstract_model_of(config, LoRA(rank=2, targets=("gate", "up", "down", "router")))
    random = np.random.default_rng(0)
    parameters = {
        name: jnp.asarray(random.normal(0, 0.4, x.shape), jnp.float32)
        for name, x in structure.shapes.items()
    }
    tokens = jnp.asarray(random.integers(0, 32, (3, 9)))
    plain = structure_of(config).module(structure.merged(parameters))
    adapted = structure.module(parameters)
    hidden = jax.jit(lambda model: model.hidden(tokens))
    np.testing.assert_allclose(hidden(adapted), hidden(plain), atol=2e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"per_token": 9}, "per_token = 9"),
        ({"losses": (ZLoss(weight=1.0), ZLoss(weight=2.0))}, "losses"),
        ({"router": SigmoidTopK(groups=3)}, "groups = 3"),
    ],
)
def test_settings_that_do_not_fit_are_named(changes, message):
    with pytest.raises(ConfigError, match=message):
        Experts(**changes)
