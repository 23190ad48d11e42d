"""Encoders with inputs, lengths, labels and files of other kinds than those of small models."""

import logging

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from saved_folders import change_settings, change_tensors, save_tiny
from variants import check_files, check_gradients, check_outputs, check_variant, models

from jaxformer.errors import DataError
from jaxformer.functional.positions.rope_scaling import GivenFrequencies
from jaxformer.models import AbstractModel
from jaxformer.parity.examples import example_inputs
from jaxformer.parity.reference import Reference
from jaxformer.pretrained.auto import load
from jaxformer.pretrained.outputs import forward, gradients
from jaxformer.pretrained.writing import save

pytestmark = pytest.mark.torch
MASK, END = 7, 2


@pytest.mark.parametrize("model_type", ["roberta", "mpnet"])
@pytest.mark.slow
def test_padding_that_no_mask_hides_is_seen_and_not_counted(model_type, tmp_path):
    def unhidden(checkpoint):
        inputs = example_inputs(checkpoint, "left")
        return {name: array for name, array in inputs.items() if name != "attention_mask"}

    check_variant(tmp_path, model_type, {}, inputs=unhidden)


@pytest.mark.parametrize("labels", [np.eye(3), np.array([0.5, -1, 2])], ids=["several", "a number"])
@pytest.mark.slow
def test_labels_that_are_numbers(labels, tmp_path):
    def with_labels(checkpoint):
        return example_inputs(checkpoint, "right") | {"labels": labels.astype(np.float32)}

    changes = {"num_labels": labels[:1].size}
    check_variant(tmp_path, "bert", changes, "SequenceClassification", with_labels)


@pytest.mark.parametrize("model_type", ["dinov2", "dinov3_vit"])
@pytest.mark.quick("dinov2")
def test_masked_patches(model_type, tmp_path):
    changes = {"image_size": 12, "patch_size": 4}
    ours, theirs = models(save_tiny(model_type, tmp_path, "Model", **changes))
    masked = np.arange(27).reshape(3, 9) % 4 == 1
    check_outputs(ours, theirs, example_inputs(ours.checkpoint) | {"bool_masked_pos": masked})


def test_patches_cannot_be_masked_without_a_token(tmp_path):
    ours = load(save_tiny("vit", tmp_path))
    masked = {"bool_masked_pos": np.ones((3, 8), bool)}
    with pytest.raises(DataError, match="bool_masked_pos"):
        forward(ours, example_inputs(ours.checkpoint) | masked)


def test_rows_longer_than_all_positions(tmp_path):
    """Without positions in the embeddings, the configured length limits nothing."""
    changes = {"position_biased_input": False, "max_position_embeddings": 12}
    ours, theirs = models(save_tiny("deberta-v2", tmp_path, "Model", **changes))
    check_outputs(ours, theirs, example_inputs(ours.checkpoint, "left", length=45))


@pytest.mark.more
def test_a_published_file_has_the_head_and_a_discriminator(tmp_path, caplog):
    """Its config.json names neither a class nor the kind of head."""
    theirs = save_tiny("deberta-v2", tmp_path / "theirs", legacy=False)
    expected = load(theirs)
    change_settings(theirs, "architectures", "legacy")

    def published(tensors):
        tensors["mask_predictions.dense.weight"] = np.ones((48, 48), np.float32)
        tensors["mask_predictions.classifier.bias"] = np.ones(1, np.float32)
        tensors["deberta.embeddings.position_ids"] = np.arange(20)[None]

    change_tensors(theirs, published)
    with caplog.at_level(logging.WARNING):
        found = load(theirs)
    (warning,) = [each.getMessage() for each in caplog.records if "left out" in each.getMessage()]
    assert "mask_predictions.dense.weight" in warning
    inputs = example_inputs(found.checkpoint, "right")
    actual, wanted = forward(found, inputs), forward(expected, inputs)
    np.testing.assert_array_equal(actual["logits"], wanted["logits"])
    save(found, tmp_path / "ours")
    assert "cls.predictions.bias" in load_file(tmp_path / "ours" / "model.safetensors")


def test_where_a_file_has_both_heads_that_of_the_class_counts(tmp_path):
    folder = save_tiny("deberta", tmp_path)
    tensors = load_file(folder / "model.safetensors")
    other = {
        name.replace("cls.predictions.transform.", "lm_predictions.lm_head."): 2 * tensor
        for name, tensor in tensors.items()
        if "transform" in name
    }
    wanted = load(folder).parameters["heads.masked_language_model.dense.kernel"]
    save_file(tensors | other, folder / "model.safetensors", metadata={"format": "pt"})
    found = load(folder).parameters["heads.masked_language_model.dense.kernel"]
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("implementation", ["reference", "blockwise"])
@pytest.mark.slow
def test_rows_that_blocks_do_not_divide(implementation, tmp_path):
    """Transformers pads them, and leaves the padding in the hidden states."""
    _, theirs = models(save_tiny("big_bird", tmp_path, "PreTraining"))
    ours = load(tmp_path, attention=implementation)
    for length, padding in ((28, "right"), (35, "left")):
        inputs = example_inputs(ours.checkpoint, padding, length=length)
        check_outputs(ours, theirs, inputs, hidden_states=False)
        check_gradients(ours, theirs, inputs)


def test_short_rows_have_full_attention(tmp_path):
    ours, theirs = models(save_tiny("big_bird", tmp_path))
    # Once it has seen a short row, their model has full attention for good.
    check_outputs(ours, theirs, example_inputs(ours.checkpoint, "left", length=27))


@pytest.mark.more
def test_lengths_with_another_plan_of_random_blocks(tmp_path):
    changes = {"max_position_embeddings": 1024, "num_hidden_layers": 1}
    ours, theirs = models(save_tiny("big_bird", tmp_path, "Model", block_size=64, **changes))
    inputs = example_inputs(ours.checkpoint, "right", rows=1, length=1024)
    check_outputs(ours, theirs, inputs)


@pytest.mark.slow
def test_answers_lie_outside_the_question(tmp_path):
    ours, theirs = models(save_tiny("big_bird", tmp_path, "QuestionAnswering"))
    inputs = dict(example_inputs(ours.checkpoint, "right"))
    inputs["input_ids"][0, 5] = 7
    del inputs["token_type_ids"]
    check_outputs(ours, theirs, inputs)
    scores = forward(ours, inputs)["start_logits"]
    assert (scores[0, 1:6] < -9e5).all()
    assert (scores[0, 6:] > -9e5).all()


@pytest.mark.parametrize("padding", ["none", "left", "right"])
@pytest.mark.quick("left")
def test_contacts_are_those_of_transformers(padding, tmp_path):
    import torch

    ours, theirs = models(save_tiny("esm", tmp_path, "Model"))
    inputs = example_inputs(ours.checkpoint, padding)
    ids = np.where(np.arange(11) == 4, END, inputs["input_ids"])
    mask = inputs.get("attention_mask", np.ones_like(ids))
    exact = theirs.to_float64().model
    expected = exact.predict_contacts(torch.tensor(ids), torch.tensor(mask)).detach().numpy()
    inputs = {"input_ids": ids, "attention_mask": mask}
    attentions = forward(ours, inputs, output_attentions=True)["attentions"]
    head = AbstractModel(ours.config.build).module(ours.parameters).contact_head
    found = head(jnp.asarray(attentions), jnp.asarray((mask > 0) & (ids != END)))
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6)


def as_published(tensors):
    """Frequencies of each layer, rounded to float16, and a table that nothing reads."""
    (name,) = (each for each in tensors if each.endswith("inv_freq"))
    rounded = tensors.pop(name).astype(np.float16).astype(np.float32)
    for layer in range(3):
        tensors[name.replace("*", str(layer))] = rounded
    assert len(np.unique(rounded)) == 4


@pytest.mark.slow
def test_frequencies_are_those_of_the_file(tmp_path):
    folder = save_tiny("esm", tmp_path / "theirs")
    change_tensors(folder, as_published)
    ours, theirs = models(folder)
    assert isinstance(ours.config.position.scaling, GivenFrequencies)
    inputs = example_inputs(ours.checkpoint, "left")
    check_outputs(ours, theirs, inputs)
    check_gradients(ours, theirs, inputs)
    save(load(folder, dtype=None), tmp_path / "ours")
    before, after = (tmp_path / name / "model.safetensors" for name in ("theirs", "ours"))
    assert before.read_bytes() == after.read_bytes()
    save(ours, tmp_path / "again")
    again = load(tmp_path / "again")
    assert again.config == ours.config
    assert "esm.rotary_embeddings.inv_freq" in load_file(tmp_path / "again/model.safetensors")


def test_rows_with_many_masks_and_with_none(tmp_path):
    ours, theirs = models(save_tiny("esm", tmp_path))
    inputs = example_inputs(ours.checkpoint, "right")
    ids = np.where(inputs["input_ids"] == MASK, MASK + 1, inputs["input_ids"])
    ids[1, :4] = MASK
    check_outputs(ours, theirs, inputs | {"input_ids": ids})


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
