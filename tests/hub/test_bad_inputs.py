"""Arrays that a model cannot take: the message names the array, before anything compiles."""

import jax.numpy as jnp
import numpy as np
import pytest
from saved_folders import save_tiny

import jaxformer
from jaxformer.cli import main as cli
from jaxformer.errors import DataError
from jaxformer.hub.families import forward
from jaxformer.hub.inputs import checked_inputs
from jaxformer.models import (
    Classification,
    EncoderConfig,
    MaskedLanguageModel,
    Span,
    TokenClassification,
)

pytestmark = pytest.mark.torch

IDS = np.arange(22).reshape(2, 11)


def model_fixture(kind, head=""):
    @pytest.fixture(scope="module")
    def load(tmp_path_factory):
        return jaxformer.load(save_tiny(kind, tmp_path_factory.mktemp(kind) / kind, head))

    return load


bert = model_fixture("bert")
llama = model_fixture("llama")
labelled = model_fixture("bert", "TokenClassification")
t5 = model_fixture("t5")
vit = model_fixture("vit")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"inputs_ids": IDS}, "inputs_ids is not known: one of attention_mask, "),
        ({"pixel_values": IDS}, "pixel_values .* attention_mask, "),
        ({"decoder_input_ids": IDS}, "decoder_input_ids"),
        ({"input_ids": IDS[0]}, r"input_ids must have the shape \[B, T\], not \(11,\)"),
        ({"input_ids": IDS[:0]}, r"input_ids is empty: its shape is \(0, 11\)"),
        ({"input_ids": IDS.astype(float)}, "input_ids must hold integers, not float64"),
        ({"input_ids": [["a", "b"]]}, "input_ids must hold integers, not <U1"),
        ({"input_ids": IDS + 120}, "input_ids holds 120 to 141, but the vocabulary has 0 to 130"),
        ({"input_ids": IDS - 1}, "input_ids holds -1 to 20, but the vocabulary has 0 to 130"),
        ({"input_ids": np.ones((2, 21), int)}, "input_ids asks for 21 positions: .* has 20"),
        ({"position_ids": IDS}, "position_ids asks for 22 positions: .* has 20 positions"),
        ({"attention_mask": np.ones((2, 10))}, r"attention_mask has shape \(2, 10\), its ids"),
        ({"attention_mask": np.ones((2, 11), str)}, "attention_mask must hold numbers"),
        ({"token_type_ids": IDS}, "token_type_ids holds 0 to 21, but the model has 0 to 1"),
        ({"token_type_ids": 0 * IDS[:1]}, r"token_type_ids has shape \(1, 11\), its ids \(2, 11\)"),
        ({"labels": IDS[:1]}, r"labels has shape \(1, 11\), but there are 2 rows"),
        ({"labels": IDS * 10}, "labels holds 0 to 210, but the model has 0 to 130"),
        ({"input_ids": IDS > 3}, "input_ids must hold integers, not bool"),
        (
            {"input_ids": [[1, 2], [3]]},
            "input_ids is not an array: must be one, or lists",
        ),
        ({"input_ids": "Hello"}, "input_ids must hold integers, not <U5"),
        ({"input_ids": 3}, "input_ids is a number: must be an array"),
        ({"input_ids": IDS + 2**32}, "input_ids holds 4294967296 to .*, more than an int32 can"),
        ({"position_ids": IDS % 20 - 1}, "position_ids holds -1 to 18, but .* positions 0 to 19"),
        ({"position_ids": IDS + 2**40}, "position_ids holds 1099511627776 to .* an int32"),
        ({"position_ids": IDS[:, :1]}, r"position_ids has shape \(2, 1\), its ids"),
        ({"attention_mask": np.where(IDS > 3, 0, -np.inf)}, "attention_mask holds -inf to 0.*== 0"),
        ({"attention_mask": np.full(IDS.shape, np.nan)}, "attention_mask holds nan to nan"),
        ({"attention_mask": np.full(IDS.shape, 0.5)}, "attention_mask holds 0.5 to 0.5: must hold"),
        ({"attention_mask": IDS}, "attention_mask holds 0 to 21: must hold 0 and 1"),
        ({"token_type_ids": IDS - 5}, "token_type_ids holds -5 to 16"),
    ],
)
def test_arrays_for_an_encoder(changes, message, bert):
    with pytest.raises(DataError, match=f"inputs: {message}"):
        jaxformer.forward(bert, {"input_ids": IDS} | changes)


def test_no_ids(bert, vit):
    with pytest.raises(DataError, match="input_ids is missing; there are attention_mask"):
        jaxformer.forward(bert, {"attention_mask": np.ones((2, 11))})
    with pytest.raises(DataError, match="input_ids is missing; there are none"):
        jaxformer.forward(bert, {})
    with pytest.raises(DataError, match="pixel_values is missing"):
        jaxformer.forward(vit, {})


def test_arrays_for_a_decoder(llama):
    with pytest.raises(DataError, match="token_type_ids"):
        jaxformer.forward(llama, {"input_ids": IDS, "token_type_ids": np.zeros_like(IDS)})


def test_arrays_for_an_encoder_decoder(t5):
    with pytest.raises(DataError, match=r"decoder_input_ids .* is missing"):
        jaxformer.forward(t5, {"input_ids": IDS})
    mask = {"decoder_input_ids": IDS[:, :5], "decoder_attention_mask": np.ones((2, 11))}
    with pytest.raises(DataError, match=r"decoder_attention_mask has shape \(2, 11\), its ids"):
        jaxformer.forward(t5, {"input_ids": IDS} | mask)


def test_arrays_for_images(vit):
    channels, (rows, columns) = vit.config.channels, vit.config.image_size
    with pytest.raises(DataError, match=rf"\[B, {channels}, {rows}, {columns}\]"):
        jaxformer.forward(vit, {"pixel_values": np.zeros((2, rows, columns, channels + 1))})
    with pytest.raises(DataError, match="input_ids"):
        jaxformer.forward(vit, {"input_ids": IDS})


def test_pixels(vit):
    shape = 2, vit.config.channels, *vit.config.image_size
    for pixels, message in (
        (np.zeros(shape, np.uint8), "pixel_values must hold floats, not uint8"),
        (np.full(shape, np.nan), "pixel_values holds NaN or numbers that are infinite"),
        (np.full(shape, 1e300), "pixel_values holds NaN or numbers that are infinite in float32"),
        (np.zeros((0, *shape[1:])), "pixel_values is empty"),
    ):
        with pytest.raises(DataError, match=f"inputs: {message}"):
            checked_inputs({"pixel_values": pixels}, vit.config)


def head_config(head):
    return EncoderConfig(8, 1, 1, 8, vocab_size=131, heads=(head,))


@pytest.mark.parametrize(
    ("head", "labels", "message"),
    [
        (MaskedLanguageModel(), IDS.astype(float), "labels must hold integers, not float64"),
        (MaskedLanguageModel(), IDS > 5, "labels must hold integers, not bool"),
        (MaskedLanguageModel(), IDS[:, :3], r"labels has shape \(2, 3\), its ids \(2, 11\)"),
        (TokenClassification(3), IDS % 4, "labels holds 0 to 3, but the model has 0 to 2"),
        (TokenClassification(3), np.zeros(2, int), r"labels has shape \(2,\), its ids"),
        (Classification(3), IDS % 3, r"labels must have the shape \[B\], not \(2, 11\)"),
        (Classification(3), [0, 3], "labels holds 0 to 3, but the model has 0 to 2"),
        (Classification(3), [0.0, 1.0], r"labels must have the shape \[B, 3\], a float for each"),
        (Classification(1), [0.0, np.nan], "labels holds NaN"),
        (Classification(3), ["a", "b"], "labels must hold numbers, not <U1"),
    ],
)
def test_labels_of_another_kind(head, labels, message):
    with pytest.raises(DataError, match=f"inputs: {message}"):
        checked_inputs({"input_ids": IDS, "labels": labels}, head_config(head))


@pytest.mark.parametrize(
    ("head", "labels"),
    [
        (TokenClassification(1), np.zeros(IDS.shape)),
        (TokenClassification(1), IDS > 3),
        (TokenClassification(3), np.where(IDS > 3, -100, 2)),
        (Classification(3), [0, 2]),
        (Classification(3), [[0], [2]]),
        (Classification(3), np.eye(3)[:2]),
        (Classification(1), np.float16([0.5, 2])),
        (Classification(1), [[5], [-7]]),
        (Span(), [7, 7]),
    ],
)
def test_labels_that_a_head_reads(head, labels):
    checked_inputs({"labels": labels, "input_ids": IDS.tolist()}, head_config(head))


def test_ordinary_arrays_are_fine():
    arrays = {
        "input_ids": jnp.asarray(IDS, jnp.uint8),
        "attention_mask": jnp.ones(IDS.shape, jnp.bfloat16),
        "position_ids": IDS % 20,
        "start_positions": np.int64([3, 40]),
        "end_positions": [3, 40],
    }
    types = {
        name: array.dtype for name, array in checked_inputs(arrays, head_config(Span())).items()
    }
    assert types == dict.fromkeys(arrays, jnp.int32) | {"attention_mask": jnp.float32}
    with pytest.raises(DataError, match="start_positions must have the shape"):
        checked_inputs(arrays | {"start_positions": IDS}, head_config(Span()))
    with pytest.raises(DataError, match="end_positions holds -1: "):
        checked_inputs(arrays | {"end_positions": [3, -1]}, head_config(Span()))
    with pytest.raises(DataError, match="inputs is of type list: must be a mapping"):
        checked_inputs(IDS.tolist(), head_config(Span()))


def test_gradients_need_labels(bert, labelled):
    for model in (bert, labelled):
        with pytest.raises(DataError, match=r"needs labels; there are input_ids"):
            jaxformer.gradients(model, {"input_ids": IDS})
    with pytest.raises(DataError, match="labels holds 0 to 21, but the model has 0 to 1"):
        jaxformer.gradients(labelled, {"input_ids": IDS, "labels": IDS})


def test_what_is_checked_is_what_the_model_gets(bert):
    checked = checked_inputs({"input_ids": IDS.tolist(), "attention_mask": IDS > 3}, bert.config)
    assert {name: str(array.dtype) for name, array in checked.items()} == {
        "input_ids": "int32",
        "attention_mask": "int32",
    }
    outputs = forward(bert.model, bert.checkpoint, checked)
    expected = jaxformer.forward(bert, {"input_ids": IDS, "attention_mask": IDS > 3})
    np.testing.assert_allclose(
        outputs["last_hidden_state"], expected["last_hidden_state"], 1e-4, 1e-4
    )


def test_labels_that_do_not_count_are_fine(labelled):
    outputs = jaxformer.forward(labelled, {"input_ids": IDS, "labels": np.where(IDS < 9, 1, -100)})
    assert np.isfinite(outputs["loss"])


@pytest.mark.parametrize("content", [None, b"no arrays", b"PK\x03\x04 cut", "npy", "objects"])
def test_a_file_without_arrays(content, bert, tmp_path, capsys):
    inputs, output = tmp_path / "in.npz", tmp_path / "out.npz"
    if isinstance(content, bytes):
        inputs.write_bytes(content)
    elif content:
        with inputs.open("wb") as file:
            save = np.save if content == "npy" else np.savez
            save(file, IDS if content == "npy" else np.array([{}], object))
    arguments = ["forward", str(bert.folder), "--inputs", str(inputs), "--output", str(output)]
    assert cli.main(arguments) == 2
    expected = f"{inputs} does not" if content is None else f"{inputs}: not an .npz file that can"
    assert f"error: {expected}" in capsys.readouterr().err
    assert not output.exists()
