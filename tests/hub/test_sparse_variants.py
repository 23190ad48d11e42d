"""BigBird and LongT5 in other lengths and with other fields than their small models have."""

import pytest
from saved_folders import save_tiny
from variants import check_gradients, check_outputs, check_variant, models

import jaxformer
from jaxformer.parity.examples import example_inputs

pytestmark = pytest.mark.torch

VARIANTS = {
    "big_bird with full attention": (
        "big_bird",
        {"attention_type": "original_full", "rescale_embeddings": False, "use_bias": False},
    ),
    "big_bird with one random block": ("big_bird", {"num_random_blocks": 1}),
    "longt5 with a window alone": ("longt5", {"encoder_attention_type": "local"}),
    "longt5 with a window of one token": ("longt5", {"local_radius": 0}),
    "longt5 of rows shorter than a block": ("longt5", {"global_block_size": 16}),
    "longt5 without a gate": (
        "longt5",
        {"feed_forward_proj": "relu", "tie_word_embeddings": False, "num_decoder_layers": 4},
    ),
}


@pytest.mark.parametrize(("model_type", "changes"), VARIANTS.values(), ids=VARIANTS)
@pytest.mark.slow
def test_variants(model_type, changes, tmp_path):
    check_variant(tmp_path, model_type, changes)


@pytest.mark.parametrize("implementation", ["reference", "blockwise"])
@pytest.mark.slow
def test_rows_that_blocks_do_not_divide(implementation, tmp_path):
    """Transformers pads them, and leaves the padding in the hidden states."""
    ours, theirs = models(save_tiny("big_bird", tmp_path, "PreTraining"))
    ours = jaxformer.load(tmp_path, attention=implementation)
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
    scores = jaxformer.forward(ours, inputs)["start_logits"]
    assert (scores[0, 1:6] < -9e5).all()
    assert (scores[0, 6:] > -9e5).all()
