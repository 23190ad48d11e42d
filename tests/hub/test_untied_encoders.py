"""Encoders whose logits have a separate table, and the bias twice in their files."""

import logging

import numpy as np
import pytest
from safetensors.numpy import load_file
from saved_folders import change_settings, change_tensors, save_tiny
from variants import check_files, check_gradients, check_outputs, models

from jaxformer.errors import DataError
from jaxformer.parity.examples import example_inputs
from jaxformer.parity.reference import Reference
from jaxformer.pretrained.auto import load
from jaxformer.pretrained.outputs import forward, gradients
from jaxformer.pretrained.writing import save

pytestmark = pytest.mark.torch

PREDICTIONS = ("cls.predictions.bias", "cls.predictions.decoder.bias")
LM_HEAD = ("lm_head.bias", "lm_head.decoder.bias")
BIASES = {
    **dict.fromkeys(("bert", "nomic_bert", "ernie", "deberta", "roformer"), PREDICTIONS),
    **dict.fromkeys(("roberta", "xlm-roberta-xl", "mpnet"), LM_HEAD),
    "albert": ("predictions.bias", "predictions.decoder.bias"),
    "electra": ("generator_lm_head.bias",) * 2,
    "distilbert": ("vocab_projector.bias",) * 2,
}
MLM = "ForMaskedLM"


def untied(kind, folder, alike=True):
    """A model that transformers saves; `alike`: with the same bias in both places."""
    own, counts = BIASES[kind]
    save_tiny(kind, folder, MLM, tie_word_embeddings=False)
    if alike:
        change_tensors(folder, lambda tensors: tensors.update({own: tensors[counts].copy()}))
    return folder


@pytest.mark.parametrize("kind", BIASES)
@pytest.mark.quick("bert")
def test_outputs_and_files_are_those_of_transformers(kind, tmp_path):
    ours, theirs = models(untied(kind, tmp_path / "theirs"))
    inputs = example_inputs(ours.checkpoint, "left")
    check_outputs(ours, theirs, inputs)
    check_gradients(ours, theirs, inputs)
    save(ours, tmp_path / "ours")
    check_files(tmp_path / "ours", tmp_path / "theirs")


@pytest.mark.parametrize("kind", ["bert", "roberta"])
@pytest.mark.more
@pytest.mark.quick("roberta")
def test_the_bias_of_the_decoder_counts(kind, tmp_path, caplog):
    folder = untied(kind, tmp_path / "theirs", alike=False)
    with caplog.at_level(logging.WARNING):
        ours, theirs = models(folder)
    own, counts = BIASES[kind]
    assert f"another bias of the same module counts in transformers: {own}" in caplog.text
    inputs = example_inputs(ours.checkpoint)
    check_outputs(ours, theirs, inputs)
    save(ours, tmp_path / "ours")
    before, saved = (load_file(x / "model.safetensors") for x in (folder, tmp_path / "ours"))
    for name in (own, counts):  # the one that nothing reads stays as it was, and never learns
        np.testing.assert_array_equal(saved[name], before[name])
    check_gradients(ours, theirs, inputs)
    assert own not in gradients(ours, inputs)


def test_an_old_file_has_one_bias(tmp_path):
    """Files of version 4 leave one out; exports have both, since transformers 5 reads the other."""
    folder = untied("bert", tmp_path / "theirs")
    inputs = example_inputs(load(folder).checkpoint)
    expected = forward(load(folder), inputs)["logits"]
    change_tensors(folder, lambda tensors: tensors.pop(BIASES["bert"][1]))
    ours = load(folder)
    np.testing.assert_array_equal(forward(ours, inputs)["logits"], expected)
    save(ours, tmp_path / "ours")
    again = Reference(tmp_path / "ours", "BertForMaskedLM").outputs(inputs)["logits"]
    np.testing.assert_allclose(again, expected, atol=2e-5)
    change_tensors(folder, lambda tensors: tensors.pop(BIASES["bert"][0]))
    with pytest.raises(DataError, match=r"cls.predictions.decoder.bias is missing"):
        load(folder)


def test_the_table_of_angles_is_written_and_checked(tmp_path):
    name = "roformer.encoder.embed_positions.weight"
    folder = save_tiny("roformer", tmp_path / "theirs", MLM)
    table = load_file(folder / "model.safetensors")[name]
    # A file of Flax has none.
    change_tensors(folder, lambda tensors: tensors.pop(name))
    ours = load(folder)
    save(ours, tmp_path / "ours")
    saved = load_file(tmp_path / "ours" / "model.safetensors")[name]
    np.testing.assert_array_equal(saved, table)
    assert name not in gradients(ours, example_inputs(ours.checkpoint))  # it is not learned
    change_tensors(folder, lambda tensors: tensors.update({name: table + 0.01}))
    with pytest.raises(DataError, match=name):
        load(folder)
    # Nothing of that size is made.
    change_settings(folder, max_position_embeddings=10**9)
    with pytest.raises(DataError, match=rf"{name} has shape \(20, 8\), not \(1000000000, 8\)"):
        load(folder)
