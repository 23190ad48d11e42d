"""Vision: what the tokens of an image are, and who sees whom."""

import math
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_models import (
    STACK,
    batch_for,
    close,
    hidden_of,
    random_parameters,
    scores_of,
    structure_of,
    tiny_encoder,
    tiny_vision,
)

from jaxformer.errors import ArgumentError, ConfigError
from jaxformer.functional import (
    KeyPadding,
    Learned,
    Learned2D,
    NoPosition,
    PatchBias,
    Sinusoidal,
    Sinusoidal2D,
    T5Bias,
    layer_norm,
    resize_positions,
)
from jaxformer.models import (
    AbstractModel,
    AttentionPooler,
    Classification,
    Model,
    ModelOutput,
    NormPooler,
    VisionConfig,
)
from jaxformer.models import TokenClassification as Tags
from jaxformer.models.heads.base import build_heads
from jaxformer.nn import (
    MLP,
    DotProductAttention,
    Linear,
    Transformer,
    TransformerBlock,
    TransformerConfig,
)
from jaxformer.nn.layers import normal

MEAN = (Classification(num_labels=3, pooling="mean"),)
TABLE = "transformer.inputs.position_table"


def cut(images):
    """The 2 x 4 patches of 4 x 3 pixels, `[B, 8, 4, 3, 2]`."""
    columns = [np.split(row, 4, axis=2) for row in np.split(images, 2, axis=1)]
    return np.stack([patch for row in columns for patch in row], axis=1)


def joined(patches):
    """The image of such patches."""
    rows = [np.concatenate(list(row.swapaxes(0, 1)), axis=2) for row in np.split(patches, 2, 1)]
    return np.concatenate(rows, axis=1)


def test_every_token_depends_on_every_pixel():
    config = tiny_vision()
    model = structure_of(config).module(random_parameters(config))
    image = jnp.asarray(batch_for(config, rows=1)["images"])
    jacobian = jax.jit(jax.jacrev(lambda image: model.hidden(image)[0]))(image)[:, :, 0]
    assert jacobian.shape == (9, 20, 8, 12, 2)
    assert (jnp.abs(jacobian).max(1) > 0).all()


@pytest.mark.parametrize("class_token", [True, False])
def test_without_positions_permuted_patches_give_permuted_outputs(class_token):
    config = tiny_vision(position=NoPosition(), class_token=class_token)
    parameters, images = random_parameters(config), batch_for(config, rows=2)["images"]
    order = np.array([3, 1, 7, 0, 2, 6, 5, 4])
    hidden = hidden_of(config, parameters, images)
    shuffled = hidden_of(config, parameters, joined(cut(images)[:, order]))
    if class_token:
        close(shuffled[:, 0], hidden[:, 0])
        hidden, shuffled = hidden[:, 1:], shuffled[:, 1:]
    close(shuffled, hidden[:, order])


POSITIONS = [Learned(max_length=9), Sinusoidal(theta=100.0), Sinusoidal2D((2, 4), theta=100.0)]


@pytest.mark.first("position0")
@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.quick("position2", "position0")
def test_positions_are_added_token_by_token(position):
    """The class token is number 0, and the patches follow row by row."""
    config = tiny_vision(position=position, num_layers=1)
    parameters, images = random_parameters(config), batch_for(config, rows=2)["images"]
    silent = {n: jnp.zeros_like(x) if "stack" in n else x for n, x in parameters.items()}
    tokens = np.einsum("btpqc,pqcd->btd", cut(images), parameters["patch_projection.kernel"])
    tokens += parameters["patch_projection.bias"][None, None]
    first = np.broadcast_to(parameters["class_token"], (2, 1, 20))
    x = jnp.asarray(np.concatenate([first, tokens], axis=1))
    x = position.embed(x, jnp.arange(9)[None], parameters.get(TABLE))
    scale, bias = (parameters[f"transformer.final_norm.{name}"] for name in ("scale", "bias"))
    close(hidden_of(config, silent, images), layer_norm(x, scale, bias, eps=1e-6))


@pytest.mark.parametrize("class_token", [True, False])
def test_the_mean_is_over_all_patches(class_token):
    position = Learned(max_length=8 + class_token)
    config = tiny_vision(class_token=class_token, position=position, heads=MEAN)
    parameters, batch = random_parameters(config), batch_for(config, rows=2)
    mean = hidden_of(config, parameters, batch["images"])[:, -8:].mean(1)
    kernel, bias = (parameters[f"heads.label.output.{name}"] for name in ("kernel", "bias"))
    close(scores_of(config, parameters, batch)["label"], mean @ kernel + bias[None])


def test_sizes_without_allocation():
    """Counts of the published model's configuration in transformers."""
    config = VisionConfig(num_layers=12, model_dim=768, num_heads=12, mlp_dim=3072)
    assert (config.grid, config.num_tokens) == ((14, 14), 197)
    shapes = structure_of(config).shapes.values()
    assert sum(math.prod(shape.shape) for shape in shapes) == 86_567_656


# Images of several shapes -----------------------------------------------------------------------


def shaped(pooler, **changes):
    """A model of patches of 4 x 3 pixels, with a table of positions for 2 x 4 of them."""
    fields = {"class_token": False, "position": Learned2D((2, 4)), "heads": MEAN, "pooler": pooler}
    return tiny_vision(**(fields | changes))


@partial(jax.jit, static_argnums=0)
def outputs_of(config, parameters, images, grids=None, real=None):
    """The states, the pooled state and the scores."""
    model = structure_of(config).module(parameters)
    found = model.outputs_from(model.hidden(images, grids=grids, real=real), real=real)
    return found.hidden, found.pooled, model.heads["label"].scores(found)


@pytest.mark.more
@pytest.mark.parametrize("pooler", [NormPooler("mean"), AttentionPooler()])
@pytest.mark.quick("pooler0")
def test_an_image_of_the_usual_shape_is_the_same_as_patches(pooler):
    """Alone, and beside images of other shapes, whose patches are padded."""
    config = shaped(pooler)
    parameters, images = random_parameters(config), batch_for(config, rows=3)["images"]
    hidden, *wanted = outputs_of(config, parameters, images)
    pieces = jnp.asarray(cut(images).reshape(3, 8, -1))
    grids = jnp.array([[2, 4], [1, 3], [5, 1]])
    real = jnp.arange(11)[None] < jnp.prod(grids, axis=1, keepdims=True)
    padded = jnp.pad(pieces, ((0, 0), (0, 3), (0, 0)), constant_values=9.0)
    states, *found = outputs_of(config, parameters, padded, grids, real)
    close(states[0, :8], hidden[0])
    for ours, theirs in zip(found, wanted, strict=True):
        close(ours[0], theirs[0])
    # What padding holds changes nothing.
    padded = jnp.where(real[..., None], padded, -7.0)
    _, *again = outputs_of(config, parameters, padded, grids, real)
    close(again[0], found[0])
    close(again[1], found[1])


def test_a_table_for_one_shape_takes_no_grids():
    config = tiny_vision()
    model = structure_of(config).module(random_parameters(config))
    with pytest.raises(ArgumentError, match="all images have one grid in Learned"):
        model.hidden(jnp.zeros((2, 8, 24)), grids=jnp.ones((2, 2), jnp.int32))
    biases = PatchBias((2, 4), prefix=0)
    with pytest.raises(ConfigError, match=r"relative_position = .*None"):
        shaped(None, relative_position=biases)


# Positions for another image size ---------------------------------------------------------------


@pytest.mark.parametrize("class_token", [True, False])
@pytest.mark.parametrize("size", [(16, 15), (4, 6), (8, 3), (16, 6)])
def test_learned_positions_are_resized(size, class_token):
    """To more and fewer patches, and to as many (4 x 2 for 2 x 4) in another arrangement."""
    source = tiny_vision(class_token=class_token, position=Learned(8 + class_token))
    rows, columns = size[0] // 4, size[1] // 3
    position = Learned(rows * columns + class_token)
    target = replace(source, image_size=size, position=position)
    table = np.asarray(random_parameters(source)[TABLE])
    resized = target.adapted(TABLE, table, source)
    expected = resize_positions(
        jnp.asarray(table), (2, 4), (rows, columns), prefix=int(class_token)
    )
    np.testing.assert_array_equal(resized, expected)
    assert resized.shape == structure_of(target).shapes[TABLE].shape
    if class_token:
        np.testing.assert_array_equal(resized[0], table[0])


def test_what_need_not_be_resized_stays_the_same_object():
    source, value = tiny_vision(), np.ones((9, 20), np.float32)
    larger = replace(source, image_size=(16, 12), position=Learned(17))
    relative = T5Bias(bidirectional=True)
    assert source.adapted(TABLE, value, source) is value
    assert larger.adapted("class_token", value, source) is value
    assert larger.adapted(TABLE, value, tiny_encoder()) is value
    assert replace(larger, position=relative).adapted(TABLE, value, source) is value
    assert larger.adapted(TABLE, value, replace(source, position=relative)) is value
    headless = replace(source, class_token=False, position=Learned(8))
    assert larger.adapted(TABLE, value, headless) is value
    assert tiny_encoder().adapted(TABLE, value, source) is value


# Another front end --------------------------------------------------------------------------------


class Frames(Model):
    """Frames of sound, say: all that differs from `Vision` is what makes `[B, T, D]`."""

    def __init__(self, key, config):
        keys = jax.random.split(key, 3)
        inputs, outputs = {"channels": 5}, {"embed": config.model_dim}
        self.front_end = Linear(keys[0], inputs, outputs, normal(config.init_std), bias=True)
        self.transformer = Transformer(
            keys[1],
            config,
            position=config.position,
            make_block=partial(TransformerBlock().build, sublayers=(DotProductAttention(), MLP())),
            num_layers=config.num_layers,
            width=config.model_dim,
        )
        self.heads = build_heads(keys[2], config, (Classification(3, pooling="mean"), Tags(4)))

    def outputs(self, batch, key=None):
        valid = self.valid(batch)
        x = self.front_end(batch["frames"])
        hidden = self.transformer(x, mask=KeyPadding(valid), key=key)
        return ModelOutput(hidden, hidden[:, 0], valid=valid)


@pytest.mark.slow
def test_anything_that_makes_embeddings_can_feed_the_blocks():
    """No module of the package knows of frames, and heads, blocks and padding are the same."""
    config = TransformerConfig(**(STACK | {"position": Sinusoidal(theta=100.0), "dropout": 0.1}))
    abstract_model = AbstractModel(partial(Frames, config=config))
    random = np.random.default_rng(0)
    batch = {
        "frames": random.normal(size=(4, 7, 5)).astype(np.float32),
        "segments": (np.arange(7) < np.array([[7], [4], [5], [7]])).astype(np.int32),
        "targets": random.integers(0, 4, (4, 7)),
        "weights": np.ones((4, 7), np.float32),
        "label": random.integers(0, 3, 4),
        "label_weights": np.ones(4, np.float32),
    }

    @jax.jit
    def scores(parameters, batch):
        return abstract_model.module(parameters).scores(batch)

    @jax.jit
    def step(parameters, key):
        def loss(parameters):
            losses = abstract_model.module(parameters).loss(batch, key=key)[1].values()
            return sum(head.loss / head.weight for head in losses)

        value, gradients = jax.value_and_grad(loss)(parameters)
        return value, jax.tree.map(lambda p, g: p - 0.3 * g, parameters, gradients)

    parameters, history = abstract_model.init(jax.random.key(0)), []
    plain = scores(parameters, batch)
    changed = batch | {"frames": batch["frames"] + 9 * (batch["segments"] == 0)[..., None]}
    close(scores(parameters, changed)["label"], plain["label"])
    for number in range(20):
        value, parameters = step(parameters, jax.random.key(number))
        history.append(float(value))
    assert np.mean(history[-3:]) < 0.8 * history[0]


def test_a_second_token_and_a_pooler():
    config = tiny_vision(
        distillation_token=True, position=Learned(max_length=10), pooler="tanh", heads=MEAN
    )
    parameters, images = random_parameters(config), batch_for(config, rows=2)["images"]
    model = structure_of(config).module(parameters)
    hidden = hidden_of(config, parameters, images)
    assert hidden.shape == (2, 10, 20)
    other = dict(parameters) | {"distillation_token": parameters["class_token"]}
    assert jnp.abs(hidden - hidden_of(config, other, images)).max() > 1e-2
    states = model.outputs_from(hidden)
    kernel, bias = parameters["pooler.kernel"], parameters["pooler.bias"]
    close(states.pooled, jnp.tanh(hidden[:, 0] @ kernel + bias[None]))
    close(model.heads["label"]._pooled(states), hidden[:, 2:].mean(1))


def test_a_token_in_the_place_of_patches():
    """A hidden patch changes nothing; none hidden is the model without the token."""
    config = tiny_vision(mask_token=True)
    parameters, images = random_parameters(config), batch_for(config, rows=2)["images"]
    model = structure_of(config).module(parameters)
    masked = jnp.zeros((2, 8), bool).at[:, 5].set(True)
    hidden = jax.jit(lambda images, masked: model.hidden(images, masked=masked))
    changed = np.array(images)
    changed[:, 4:, 3:6] += 1.0  # the fifth patch: second row, second column
    np.testing.assert_array_equal(hidden(images, masked), hidden(changed, masked))
    assert jnp.abs(hidden(images, masked) - hidden(images, ~masked)).max() > 1e-2
    close(hidden(images, jnp.zeros((2, 8), bool)), hidden_of(config, parameters, images))
