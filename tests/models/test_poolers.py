"""What stands for a whole image, and the vector that is made of it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_models import batch_for, close, random_parameters, structure_of, tiny, tiny_vision, tokens

from jaxformer.errors import ConfigError
from jaxformer.functional import LayerNorm, Learned, layer_norm
from jaxformer.io.serialization import from_json, to_json
from jaxformer.models import AttentionPooler, Classification, ModelOutput, NormPooler, Projection
from jaxformer.nn import PreNorm, TransformerConfig

pytestmark = pytest.mark.more

NORM = LayerNorm(eps=1e-3)
GRID = {"norm": NORM, "class_token": False, "position": Learned(max_length=8)}


def run(config):
    """Parameters, hidden states of two images, and what the heads read of them."""
    parameters, images = random_parameters(config), batch_for(config, rows=2)["images"]

    @jax.jit
    def states(parameters, images):
        return structure_of(config).module(parameters).outputs({"images": images})

    return parameters, images, states(parameters, images)


def test_the_norm_of_the_first_state_instead_of_one_of_all():
    config = tiny_vision(norm=NORM, residual=PreNorm(final_norm=False), pooler=NormPooler())
    parameters, _, states = run(config)
    assert "transformer.final_norm.scale" not in parameters
    scale, bias = parameters["pooler.scale"], parameters["pooler.bias"]
    close(states.pooled, layer_norm(states.hidden[:, 0], scale, bias, eps=1e-3))
    # The states themselves are sums of what the layers give, of any size.
    assert jnp.abs(states.hidden.mean(-1)).max() > 0.05


def test_a_learned_query_over_all_states():
    parameters, _, states = run(tiny_vision(**GRID, pooler=AttentionPooler()))
    get = {name: np.asarray(array) for name, array in parameters.items() if "pooler" in name}
    hidden = np.asarray(states.hidden)

    def dense(name, x, inputs=1):
        kernel, bias = get[f"pooler.{name}.kernel"], get[f"pooler.{name}.bias"]
        return np.tensordot(x, kernel, inputs) + bias

    query = dense("attention.query", get["pooler.probe"]).reshape(2, 3, 4)
    key, value = (dense(f"attention.{part}", hidden) for part in ("key", "value"))
    # Three queries read each of the two keys of a place.
    weights = jax.nn.softmax(np.einsum("kgh,btkh->bkgt", query, key) / 2)
    found = np.einsum("bkgt,btkh->bkgh", weights, value).reshape(2, 6, 4)
    found = dense("attention.output", found, inputs=2)
    normed = layer_norm(found, get["pooler.norm.scale"], get["pooler.norm.bias"], eps=1e-3)
    inner = jax.nn.gelu(dense("feed_forward.up", np.asarray(normed)), approximate=False)
    close(states.pooled, found + dense("feed_forward.down", np.asarray(inner)))


def test_pixels_beyond_the_last_patch_are_left_out():
    config = tiny_vision(**GRID, image_size=(11, 13), crop=True, patch_bias=False)
    parameters, images, states = run(config)
    assert "patch_projection.bias" not in parameters
    whole = tiny_vision(**GRID, patch_bias=False)
    outputs = jax.jit(structure_of(whole).module(parameters).outputs)
    cut = outputs({"images": images[:, :8, :12]})
    close(states.hidden, cut.hidden)


@pytest.mark.parametrize(("pooling", "state"), [("first", "pooled"), ("last", "end")])
def test_a_projection(pooling, state):
    config = tiny(heads=(Projection(9, pooling, bias=True),))
    parameters = random_parameters(config)
    valid = jnp.asarray([[1, 1, 0], [1, 1, 1]], bool)
    hidden = jax.random.normal(jax.random.key(0), (2, 3, 20))
    states = ModelOutput(hidden, hidden[:, 0], valid=valid)
    read = {"pooled": hidden[:, 0], "end": jnp.stack([hidden[0, 1], hidden[1, 2]])}[state]
    kernel, bias = (parameters[f"heads.projection.output.{leaf}"] for leaf in ("kernel", "bias"))
    scores = structure_of(config).module(parameters).heads["projection"].scores(states)
    close(scores, np.asarray(read @ kernel) + np.asarray(bias))


@pytest.mark.slow
def test_a_decoder_projects_its_last_real_token():
    config = tiny(heads=(Projection(9, "last"),))
    module = structure_of(config).module(random_parameters(config))
    ids = tokens(1, 5)
    padded = {
        "inputs": jnp.pad(ids, ((0, 0), (0, 3))),
        "segments": jnp.asarray([[1] * 5 + [0] * 3]),
    }
    close(module.scores(padded)["projection"], module.scores({"inputs": ids})["projection"])


def test_a_projection_alone_is_not_trained():
    with pytest.raises(ConfigError, match="Projection has no training loss"):
        Projection().reads(rows=2, length=3)


def test_configurations_survive_json():
    heads = (Projection(7), Classification(num_labels=2))
    for pooler in (AttentionPooler(), NormPooler()):
        config = tiny_vision(pooler=pooler, residual=PreNorm(final_norm=False), heads=heads)
        assert from_json(to_json(config), TransformerConfig) == config
