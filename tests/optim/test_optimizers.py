import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from jaxformer.optim import LAMB, SGD, Adafactor, AdamW, Constant, Linear, Lion, Muon
from jaxformer.optim.parameter_roles import Matrix, decay_mask, hidden_matrix, map_axes

AXES = {
    "embedding.table": ("vocab", "vocab_embed"),
    "position_table": ("positions", "embed"),
    "relative.table": ("buckets", "heads"),
    "head_kernel": ("vocab_embed", "vocab"),
    "head_bias": ("vocab",),
    "layers.norm.scale": ("layers", "norm"),
    "layers.query.kernel": ("layers", "embed", "heads", "head_dim"),
    "layers.query.bias": ("layers", "heads", "head_dim"),
    "layers.output.kernel": ("layers", "heads", "head_dim", "embed"),
    "layers.up.kernel": ("layers", "embed", "mlp"),
    "layers.up.bias": ("layers", "mlp"),
}
SIZES = {"vocab": 16, "vocab_embed": 8, "positions": 10, "buckets": 6, "norm": 8, "layers": 3}
SIZES |= {"embed": 8, "heads": 4, "head_dim": 6, "mlp": 12}
MESH_AXES = {"embed": "fsdp", "vocab": ("tensor", "fsdp"), "heads": "tensor", "mlp": "tensor"}
DECAYED = {
    "head_kernel",
    "layers.query.kernel",
    "layers.output.kernel",
    "layers.up.kernel",
}

RATE = Constant(learning_rate=1e-2, warmup_steps=0)
OPTIMIZERS = [
    AdamW(schedule=RATE),
    LAMB(schedule=RATE),
    Adafactor(schedule=RATE, min_dim_size_to_factor=8, weight_decay=0.1),
    Lion(schedule=RATE),
    SGD(schedule=RATE, weight_decay=0.1, nesterov=True),
    Muon(schedule=RATE),
]
every_optimizer = pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: type(o).__name__)


def tree(seed, axes=AXES, dtype=jnp.float32):
    rng = np.random.default_rng(seed)
    return {
        name: jnp.asarray(rng.normal(size=[SIZES[a] for a in names]), dtype)
        for name, names in axes.items()
    }


def train(optimizer, params, gradients, axes=AXES):
    """The parameters and the optimizer's state after an update for each gradient."""
    return updated(optimizer.build(10, axes), params, gradients)


def updated(transformation, params, gradients):
    @jax.jit
    def step(params, state, gradient):
        updates, state = transformation.update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    state = jax.jit(transformation.init)(params)
    for gradient in gradients:
        params, state = step(params, state, gradient)
    return params, state


def assert_close(actual, expected, rtol, atol):
    check = partial(np.testing.assert_allclose, rtol=rtol, atol=atol)
    jax.tree.map(lambda a, b: check(np.asarray(a), np.asarray(b)), actual, expected)


def test_weight_decay_is_for_matrices_that_are_no_lookup_tables():
    assert {name for name, decayed in decay_mask(AXES).items() if decayed} == DECAYED


def test_embeddings_decay_where_that_is_asked_for():
    # As in transformers, whose pattern for biases takes out the tables of relative positions.
    tables = {"embedding.table", "position_table"}
    assert {name for name, decayed in decay_mask(AXES, True).items() if decayed} == DECAYED | tables


def test_muon_takes_the_hidden_matrices_with_their_axes_on_two_sides():
    assert {name: sides for name, sides in map_axes(hidden_matrix, AXES).items() if sides} == {
        "layers.query.kernel": Matrix((1,), (2, 3)),
        "layers.output.kernel": Matrix((1, 2), (3,)),
        "layers.up.kernel": Matrix((1,), (2,)),
    }


def test_roles_follow_nested_trees_and_their_paths():
    nested = {"query": {"kernel": ("embed", "heads", "head_dim"), "bias": ("heads", "head_dim")}}
    assert decay_mask(nested) == {"query": {"kernel": True, "bias": False}}


@pytest.mark.torch
def test_adamw_equals_torch_with_masked_decay():
    import torch

    optimizer = AdamW(schedule=Linear(1e-2, warmup_steps=2), weight_decay=0.3, beta2=0.99)
    start, gradients = tree(0), [tree(seed) for seed in range(1, 6)]
    ours, _ = train(optimizer, start, gradients)
    theirs = {name: torch.nn.Parameter(torch.tensor(np.asarray(x))) for name, x in start.items()}
    groups = [
        {"params": [x for name, x in theirs.items() if (name in DECAYED) == decayed]}
        | {"weight_decay": 0.3 * decayed}
        for decayed in (True, False)
    ]
    reference = torch.optim.AdamW(groups, betas=(0.9, 0.99), eps=1e-8)
    schedule = optimizer.schedule.build(10)
    for step, gradient in enumerate(gradients):
        for group in reference.param_groups:
            group["lr"] = float(schedule(step))
        for name, x in theirs.items():
            x.grad = torch.tensor(np.asarray(gradient[name]))
        reference.step()
    theirs = {name: x.detach().numpy() for name, x in theirs.items()}
    assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.torch
@pytest.mark.parametrize("nesterov", [True, False])
def test_sgd_equals_torch(nesterov):
    import torch

    axes = {"w": ("embed", "mlp")}
    start, gradients = tree(0, axes), [tree(seed, axes) for seed in (1, 2, 3)]
    optimizer = SGD(schedule=RATE, momentum=0.9, nesterov=nesterov)
    ours, _ = train(optimizer, start, gradients, axes)
    w = torch.nn.Parameter(torch.tensor(np.asarray(start["w"])))
    reference = torch.optim.SGD([w], lr=1e-2, momentum=0.9, nesterov=nesterov)
    for gradient in gradients:
        w.grad = torch.tensor(np.asarray(gradient["w"]))
        reference.step()
    np.testing.assert_allclose(ours["w"], w.detach().numpy(), rtol=1e-5, atol=1e-6)


def test_lion_equals_its_published_update():
    axes = {"w": ("embed", "mlp")}
    w, m = tree(0, axes)["w"], 0.0
    gradients = [tree(seed, axes) for seed in (1, 2, 3)]
    ours, _ = train(Lion(schedule=RATE, weight_decay=0.5), {"w": w}, gradients, axes)
    for gradient in gradients:
        g = gradient["w"]
        w = w - 1e-2 * (jnp.sign(0.9 * m + 0.1 * g) + 0.5 * w)
        m = 0.99 * m + 0.01 * g
    np.testing.assert_allclose(ours["w"], w, rtol=1e-5, atol=1e-6)


def test_lamb_equals_that_of_optax_on_matrices_and_adamw_elsewhere():
    matrices = {"w": ("embed", "mlp"), "table": ("vocab", "vocab_embed")}
    axes = matrices | {"bias": ("mlp",), "norm": ("norm",)}
    start, gradients = tree(0, axes), [tree(seed, axes) for seed in (1, 2, 3)]
    ours, _ = train(LAMB(RATE), start, gradients, axes)
    adamw, _ = train(AdamW(RATE, beta2=0.999, eps=1e-6), start, gradients, axes)
    reference = optax.lamb(1e-2, weight_decay=0.01, mask=decay_mask(axes))
    theirs, _ = updated(reference, start, gradients)
    expected = {name: (theirs if name in matrices else adamw)[name] for name in axes}
    assert_close(ours, expected, rtol=1e-5, atol=1e-6)


def test_a_step_of_lamb_is_the_learning_rate_times_the_norm_of_each_layer():
    start = tree(0)
    params, _ = train(LAMB(RATE), start, [tree(1)])
    kernel = "layers.query.kernel"
    change = np.linalg.norm((params[kernel] - start[kernel]).reshape(3, -1), axis=1)
    size = np.linalg.norm(np.asarray(start[kernel]).reshape(3, -1), axis=1)
    np.testing.assert_allclose(change, 1e-2 * size, rtol=1e-4)


def test_lamb_moves_a_matrix_that_is_zero():
    axes = {"w": ("embed", "mlp")}
    zero, gradient = {"w": jnp.zeros((8, 12))}, tree(1, axes)
    params, _ = train(LAMB(RATE), zero, [gradient], axes)
    direction = gradient["w"] / (jnp.abs(gradient["w"]) + 1e-6)
    np.testing.assert_allclose(params["w"], -1e-2 * direction, rtol=1e-5)


def test_adafactor_equals_that_of_optax_where_there_are_no_stacks():
    axes = {"w": ("embed", "mlp"), "table": ("vocab", "vocab_embed"), "b": ("mlp",)}
    start, gradients = tree(0, axes), [tree(seed, axes) for seed in (1, 2, 3)]
    ours, state = train(Adafactor(RATE, min_dim_size_to_factor=8), start, gradients, axes)
    theirs, _ = updated(optax.adafactor(1e-2, min_dim_size_to_factor=8), start, gradients)
    assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    assert sum(x.size for x in jax.tree.leaves(state)) == 1 + (8 + 12) + (16 + 8) + 12 + 1


def test_adafactor_factors_a_projection_by_all_its_inputs_and_all_its_outputs():
    _, state = train(Adafactor(RATE, min_dim_size_to_factor=8), tree(0), [tree(1)])
    rows, columns = state[0].mean_squares["layers.query.kernel"]
    gradient = np.asarray(tree(1)["layers.query.kernel"])
    np.testing.assert_allclose(rows[..., 0, 0], (gradient**2).mean((2, 3)), rtol=1e-5)
    np.testing.assert_allclose(columns[:, 0], (gradient**2).mean(1), rtol=1e-5)


def test_muon_orthogonalises_each_layers_matrix_and_keeps_its_size():
    start = tree(0)
    optimizer = Muon(schedule=RATE, weight_decay=0.0, update_rms=0.2)
    params, _ = train(optimizer, start, [tree(1)])
    for name, shape in (("query", (8, 24)), ("output", (24, 8)), ("up", (8, 12))):
        kernel = f"layers.{name}.kernel"
        update = np.asarray(start[kernel] - params[kernel]) / 1e-2
        singular = np.linalg.svd(update.reshape(3, *shape), compute_uv=False)
        nearest_orthogonal = 0.2 * math.sqrt(max(shape))
        assert np.all(np.abs(singular / nearest_orthogonal - 1) < 0.5)


def test_muon_treats_all_else_as_adamw():
    start, gradients = tree(0), [tree(seed) for seed in (1, 2)]
    muon, _ = train(Muon(schedule=RATE), start, gradients)
    adamw, _ = train(AdamW(schedule=RATE), start, gradients)
    hidden = map_axes(hidden_matrix, AXES)
    same = {name for name in AXES if np.array_equal(muon[name], adamw[name])}
    assert same == {name for name in AXES if hidden[name] is None}


@every_optimizer
def test_reduces_a_quadratic(optimizer):
    params = {name: x + 1 for name, x in tree(0).items()}
    transformation = optimizer.build(200, AXES)

    def loss(params):
        return sum(jnp.sum(jnp.square(x)) for x in params.values()) / 2

    def step(carry, _):
        params, state = carry
        value, gradient = jax.value_and_grad(loss)(params)
        updates, state = transformation.update(gradient, state, params)
        return (optax.apply_updates(params, updates), state), value

    train_all = jax.jit(lambda p: jax.lax.scan(step, (p, transformation.init(p)), length=200)[1])
    losses = train_all(params)
    assert losses[-1] < 0.7 * losses[0]


@every_optimizer
@pytest.mark.quick("Adafactor", "Muon", "LAMB")
def test_stacked_layers_are_optimised_as_if_apart(optimizer):
    start, gradients = tree(0), [tree(seed) for seed in (1, 2, 3)]
    stacked, _ = train(optimizer, start, gradients)
    is_stacked = {name: names[0] == "layers" for name, names in AXES.items()}
    axes = {
        f"{i}.{name}": names[is_stacked[name] :]
        for i in range(SIZES["layers"])
        for name, names in AXES.items()
    }

    def unstacked(params):
        return {
            path: params[name][int(i)] if is_stacked[name] else params[name]
            for path, (i, name) in ((path, path.split(".", 1)) for path in axes)
        }

    apart, _ = train(optimizer, unstacked(start), [unstacked(g) for g in gradients], axes)
    assert_close(unstacked(stacked), apart, rtol=2e-5, atol=2e-6)


@pytest.mark.more
@every_optimizer
@pytest.mark.quick("AdamW", "Muon")
def test_sharded_equals_unsharded(optimizer):
    start, gradients = tree(0), [tree(seed) for seed in (1, 2, 3)]
    expected = train(optimizer, start, gradients)
    mesh = jax.make_mesh((2, 2, 2), ("data", "fsdp", "tensor"), (AxisType.Explicit,) * 3)
    specs = {
        name: P(*(MESH_AXES.get(a) if "positions" not in names else None for a in names))
        for name, names in AXES.items()
    }

    def put(params):
        return {name: jax.reshard(x, specs[name]) for name, x in params.items()}

    with jax.set_mesh(mesh):
        params, state = train(optimizer, put(start), [put(g) for g in gradients])
    assert {name: jax.typeof(x).sharding.spec for name, x in params.items()} == specs
    assert_close((params, state), expected, rtol=2e-5, atol=2e-6)
    sharded = {jax.typeof(x).sharding.spec for x in jax.tree.leaves(state) if x.ndim == 3}
    assert P(None, "fsdp", "tensor") in sharded or isinstance(optimizer, Adafactor)


@every_optimizer
def test_state_is_float32_for_bfloat16_parameters(optimizer):
    params, state = train(optimizer, tree(0, dtype=jnp.bfloat16), [tree(1, dtype=jnp.bfloat16)])
    assert {x.dtype for x in params.values()} == {jnp.dtype(jnp.bfloat16)}
    floating = [x for x in jax.tree.leaves(state) if jnp.issubdtype(x.dtype, jnp.floating)]
    assert {x.dtype for x in floating} == {jnp.dtype(jnp.float32)}
