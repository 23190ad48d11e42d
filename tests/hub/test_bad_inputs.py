"""Arrays that a model cannot take: the message names the array, before anything compiles."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from refusals import Row, each_row, refusal
from saved_folders import save_tiny
from tiny_models import tiny, tiny_encoder, tiny_encoder_decoder, tiny_vision

import jaxformer
from jaxformer.cli import main as cli
from jaxformer.functional import Learned
from jaxformer.hub.families import forward
from jaxformer.hub.inputs import checked_inputs
from jaxformer.models import (
    Classification,
    EncoderConfig,
    MaskedLanguageModel,
    Span,
    TokenClassification,
)

IDS = np.arange(22).reshape(2, 11)


def model_fixture(kind, head=""):
    @pytest.fixture(scope="module")
    def load(tmp_path_factory):
        return jaxformer.load(save_tiny(kind, tmp_path_factory.mktemp(kind) / kind, head))

    return load


bert = model_fixture("bert")
labelled = model_fixture("bert", "TokenClassification")
vit = model_fixture("vit")
t5 = model_fixture("t5")


def row(name, config, wrong, **good):
    """Inputs in the names of transformers, for a model."""
    return Row(lambda **arrays: checked_inputs(good | arrays, config), {}, wrong, name=name)


def head_config(head):
    return EncoderConfig(8, 1, 1, 8, vocab_size=131, heads=(head,))


ENCODER = tiny_encoder(vocab_size=131, position=Learned(20), **{"embeddings.token_types": 2})
SHAPE = 2, 2, 8, 12
ROWS = [
    row("encoder", ENCODER, {
        "inputs_ids": [IDS], "pixel_values": [IDS], "decoder_input_ids": [IDS],
        "input_ids": [
            IDS[0], IDS[:0], IDS.astype(float), [["a", "b"]], IDS + 120, IDS - 1, IDS > 3,
            np.ones((2, 21), int), [[1, 2], [3]], "Hello", IDS + 2**32,
        ],
        "position_ids": [IDS, IDS % 20 - 1, IDS + 2**40, IDS[:, :1]],
        "attention_mask": [
            np.ones((2, 10)), np.ones((2, 11), str), np.where(IDS > 3, 0, -np.inf), IDS,
            np.full(IDS.shape, np.nan), np.full(IDS.shape, 0.5),
        ],
        "token_type_ids": [IDS, 0 * IDS[:1], IDS - 5],
    }, input_ids=IDS),
    row("decoder", tiny(), {"token_type_ids": [np.zeros_like(IDS)]}, input_ids=IDS),
    row("encoder_decoder", tiny_encoder_decoder(), {
        "decoder_attention_mask": [np.ones((2, 11))],
    }, input_ids=IDS, decoder_input_ids=IDS[:, :5]),
    row("vision", tiny_vision(), {
        "input_ids": [IDS],
        "pixel_values": [
            np.zeros((2, 8, 12, 3)), np.zeros(SHAPE, np.uint8), np.full(SHAPE, np.nan),
            np.full(SHAPE, 1e300), np.zeros((0, *SHAPE[1:])),
        ],
    }),
    row("masked", head_config(MaskedLanguageModel()), {
        "labels": [IDS.astype(float), IDS > 5, IDS[:, :3], IDS[:1], IDS * 10],
    }, input_ids=IDS),
    row("before ids", head_config(MaskedLanguageModel()), {
        "input_ids": [None, "Hello"],
    }, labels=IDS, input_ids=IDS),
    row("tags", head_config(TokenClassification(3)), {
        "labels": [IDS % 4, np.zeros(2, int)],
    }, input_ids=IDS),
    row("classes", head_config(Classification(3)), {
        "labels": [IDS % 3, [0, 3], [0.0, 1.0], ["a", "b"]],
    }, input_ids=IDS),
    row("number", head_config(Classification(1)), {"labels": [[0.0, np.nan]]}, input_ids=IDS),
    row("span", head_config(Span()), {
        "start_positions": [IDS], "end_positions": [[3, -1]],
    }, input_ids=IDS),
]  # fmt: skip


@each_row(ROWS)
def test_a_wrong_array_is_named(row):
    row.check()


@pytest.mark.torch
def test_no_ids(bert, vit, t5):
    for model, inputs, name in (
        (bert, {"attention_mask": np.ones((2, 11))}, "input_ids"),
        (bert, {}, "input_ids"),
        (vit, {}, "pixel_values"),
        (t5, {"input_ids": IDS}, "decoder_input_ids"),
    ):
        refusal(partial(jaxformer.forward, model, inputs), name)


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
    refusal(lambda: checked_inputs(IDS.tolist(), head_config(Span())), "inputs is of type list")


@pytest.mark.torch
def test_gradients_need_labels(bert, labelled):
    for model in (bert, labelled):
        refusal(partial(jaxformer.gradients, model, {"input_ids": IDS}), "labels")
    refusal(partial(jaxformer.gradients, labelled, {"input_ids": IDS, "labels": IDS}), "labels")


@pytest.mark.torch
def test_what_is_checked_is_what_the_model_gets(bert):
    checked = checked_inputs({"input_ids": IDS.tolist(), "attention_mask": IDS > 3}, bert.config)
    assert {name: str(array.dtype) for name, array in checked.items()} == {
        "input_ids": "int32",
        "attention_mask": "int32",
    }
    outputs = jax.jit(partial(forward, bert.model, bert.checkpoint))(checked)
    expected = jaxformer.forward(bert, {"input_ids": IDS, "attention_mask": IDS > 3})
    np.testing.assert_allclose(
        outputs["last_hidden_state"], expected["last_hidden_state"], 1e-4, 1e-4
    )


@pytest.mark.torch
def test_labels_that_do_not_count_are_fine(labelled):
    outputs = jaxformer.forward(labelled, {"input_ids": IDS, "labels": np.where(IDS < 9, 1, -100)})
    assert np.isfinite(outputs["loss"])


@pytest.mark.torch
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
    expected = f"{inputs} does not" if content is None else f"{inputs}: not a readable .npz file"
    assert f"error: {expected}" in capsys.readouterr().err
    assert not output.exists()
