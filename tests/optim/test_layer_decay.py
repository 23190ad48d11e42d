import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_models import structure_of, tiny, tiny_encoder_decoder

from jaxformer.functional import Learned
from jaxformer.optim import SGD, Constant
from jaxformer.optim.scaling import depth_factors, scale_by_depth

GAMMA = 0.5


def shapes_of(config):
    return {name: shape.shape for name, shape in structure_of(config).shapes.items()}


def test_blocks_of_a_group_alternate_and_inputs_lie_below():
    config = tiny(num_layers=4, windows=(2, None), position=Learned(8), tie_embeddings=False)
    factors = depth_factors(shapes_of(config), GAMMA)
    up = "transformer.stack.group.{}.sublayers.1.up.kernel"
    # Layers 0 and 2 are of the first kind, 1 and 3 of the second.
    np.testing.assert_allclose(factors[up.format(0)].ravel(), [GAMMA**4, GAMMA**2])
    np.testing.assert_allclose(factors[up.format(1)].ravel(), [GAMMA**3, GAMMA])
    for name in ("embedding.table", "transformer.inputs.position_table"):
        assert factors[name] == GAMMA**5
    for name in ("transformer.final_norm.scale", "heads.language_model.kernel"):
        assert factors[name] == 1


def test_each_side_of_an_encoder_decoder_has_its_own_depth():
    config = tiny_encoder_decoder(num_layers=2, num_decoder_layers=3)
    factors = depth_factors(shapes_of(config), GAMMA)
    scale = "{}.stack.group.0.norms.0.scale"
    np.testing.assert_allclose(factors[scale.format("encoder")].ravel(), GAMMA ** np.array([2, 1]))
    np.testing.assert_allclose(
        factors[scale.format("decoder")].ravel(), GAMMA ** np.array([3, 2, 1])
    )
    assert factors["encoder.inputs.position_table"] == GAMMA**3
    assert factors["decoder.inputs.position_table"] == GAMMA**4


def test_updates_shrink_by_the_factors_and_by_nothing_else():
    config = tiny(num_layers=3)
    params = {n: jnp.ones(s.shape) for n, s in structure_of(config).shapes.items()}
    updates, _ = scale_by_depth(GAMMA).update(params, scale_by_depth(GAMMA).init(params))
    for name, factor in depth_factors(shapes_of(config), GAMMA).items():
        np.testing.assert_allclose(updates[name], np.broadcast_to(factor, updates[name].shape))


@pytest.mark.parametrize("decay", [1.0, GAMMA])
def test_an_optimizer_takes_smaller_steps_below(decay):
    axes = structure_of(tiny(num_layers=2)).axes
    shapes = structure_of(tiny(num_layers=2)).shapes
    params = {name: jnp.ones(shape.shape) for name, shape in shapes.items()}
    optimizer = SGD(
        schedule=Constant(learning_rate=1.0, warmup_steps=0), layer_decay=decay, momentum=0.0
    )
    built = optimizer.build(10, axes)
    updates, _ = jax.jit(built.update)(params, built.init(params), params)
    lower, upper = updates["transformer.stack.group.0.sublayers.1.up.kernel"][:, 0, 0]
    np.testing.assert_allclose([lower / upper, upper], [decay, -decay])
