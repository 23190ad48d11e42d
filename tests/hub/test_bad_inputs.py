"""Arrays that a model cannot take: the message names the array, before anything compiles."""

import numpy as np
import pytest
from saved_folders import save_tiny

import jaxformer
from jaxformer import cli
from jaxformer.errors import DataError
from jaxformer.hub.forward import outputs_of
from jaxformer.hub.inputs import checked_inputs

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
        ({"pixel_values": IDS}, "pixel_values is nothing that this model reads, which is"),
        ({"decoder_input_ids": IDS}, "decoder_input_ids is nothing that this model reads"),
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
    with pytest.raises(DataError, match="token_type_ids is nothing that this model reads"):
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
    with pytest.raises(DataError, match="input_ids is nothing that this model reads"):
        jaxformer.forward(vit, {"input_ids": IDS})


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
    outputs = outputs_of(bert.model, bert.source, checked)
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
    assert f"error: {inputs}: not an .npz file that can be read" in capsys.readouterr().err
    assert not output.exists()
