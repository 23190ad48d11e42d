"""Batches that do not fit the model: each array is named, with who reads it."""

import numpy as np
import pytest
from tiny_models import batch_for, tiny, tiny_encoder, tiny_encoder_decoder, tiny_vision
from train_steps import program_of

from jaxformer.errors import ArgumentError
from jaxformer.training.loss import check_batch

MODELS = {
    "decoder": tiny(),
    "encoder": tiny_encoder(),
    "both": tiny_encoder_decoder(),
    "images": tiny_vision(),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_batch_of_the_models_own_fits(name):
    batch = batch_for(MODELS[name])
    check_batch(MODELS[name], batch)
    batch.pop("segments", None)
    check_batch(MODELS[name], batch)


@pytest.mark.parametrize(
    ("name", "array", "change", "message"),
    [
        ("decoder", "inputs", None, "inputs, which the model reads, is missing"),
        ("decoder", "targets", None, "targets, which the head language_model reads, is missing"),
        ("decoder", "weights", lambda x: x[:, :-1], "weights, .* language_model .* has shape"),
        ("decoder", "weights", lambda x: x[:-1], "weights, .* language_model .* has shape"),
        ("decoder", "targets", lambda x: x.astype(np.float32), "targets"),
        ("decoder", "weights", lambda x: x > 0, "weights"),
        ("decoder", "inputs", lambda x: x[0], "inputs has shape"),
        ("encoder", "label", None, "label, which the head .* reads, is missing"),
        ("encoder", "label", lambda x: x[:, None], "label, which the head .* has shape"),
        ("encoder", "segments", lambda x: x[:, 1:], "segments, which the model reads, has shape"),
        ("both", "decoder_inputs", None, "decoder_inputs, which the decoder reads, is missing"),
        ("both", "decoder_inputs", lambda x: x[1:], "decoder_inputs has shape"),
        ("images", "images", None, "images, which the model reads, is missing"),
        ("images", "images", lambda x: x[..., :1], "images, which the model reads, has shape"),
        ("images", "images", lambda x: x.astype(np.uint8), "images, .* has dtype uint8"),
    ],
)
def test_an_array_that_does_not_fit_is_named(name, array, change, message):
    batch = batch_for(MODELS[name])
    batch = {key: x for key, x in batch.items() if key != array or change is not None}
    if change is not None:
        batch[array] = change(batch[array])
    with pytest.raises((ArgumentError, AssertionError), match=message):
        check_batch(MODELS[name], batch)


def test_the_training_step_checks_before_it_compiles():
    program, batch = program_of(tiny()), batch_for(tiny())
    del batch["targets"]
    with pytest.raises(ArgumentError, match="targets, which the head language_model reads"):
        program.train_step(program.state_shapes, batch)
