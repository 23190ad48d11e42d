"""What a training batch holds, said by the families and heads alone."""

import jax
import pytest
from family_cases import each_family
from tiny_models import batch_for

from jaxformer.models import AbstractModel

ROWS, LENGTH = 16, 7


def losses(config, batch):
    abstract_model = AbstractModel(config.build)
    return jax.eval_shape(
        lambda p, b: abstract_model.module(p).loss(b)[1], abstract_model.shapes, batch
    )


@each_family
def test_the_arrays_are_those_of_a_real_batch(config):
    batch = batch_for(config, ROWS, LENGTH)
    for name, shape in config.batch_spec(ROWS, config.batch_lengths(batch)).items():
        assert (name, shape.shape, shape.dtype) == (name, batch[name].shape, batch[name].dtype)


@pytest.mark.more
@each_family
@pytest.mark.quick("decoder", "captions")
def test_they_are_all_that_the_losses_need(config):
    shapes = config.batch_spec(ROWS, config.batch_lengths(batch_for(config, ROWS, LENGTH)))
    assert set(losses(config, shapes)) == {head.name for head in config.heads}
    for head in config.heads:
        for name in head.reads(ROWS, LENGTH):
            rest = {other: shape for other, shape in shapes.items() if other != name}
            with pytest.raises(KeyError, match=name):
                losses(config, rest)
