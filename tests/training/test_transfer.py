"""Starting from another run's parameters, with some of them frozen."""

import dataclasses

import jax
import numpy as np
import pytest
from tiny_models import batch_for
from tiny_run import tiny_config
from train_steps import program_of, stepped
from transfers import transfer

from jaxformer.checkpoints.restore import read_arrays
from jaxformer.data import MaskedLM, TrainTokenizer
from jaxformer.errors import ConfigError
from jaxformer.models import Classification
from jaxformer.optim import AdamW, Constant
from jaxformer.training.loop import train
from jaxformer.training.step import TrainProgram
from jaxformer.training.transfer.origin import check_same_tokens, open_named

OPTIMIZER = AdamW(schedule=Constant(learning_rate=0.1, warmup_steps=0))


def program_with(mesh=(1, 1, 1), **changes) -> TrainProgram:
    return program_of(tiny_config().model.with_fields(**changes), mesh)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", [(1, 1, 1), (2, 2, 2)])
def test_a_model_with_another_head_takes_all_but_the_head(finished, mesh):
    program = program_with(mesh, heads=(Classification(num_labels=3),), tie_embeddings=False)
    fresh = program.init(seed=5).params
    params, report = transfer(fresh, finished, program.model)
    assert report.new == ("heads.label.output.bias", "heads.label.output.kernel")
    assert not report.left  # the tied head has no parameters
    again, _ = transfer(program.init(seed=6).params, finished, program.model)
    for name in report.taken:
        assert params[name].sharding == fresh[name].sharding
        np.testing.assert_array_equal(params[name], again[name])
    assert (params["embedding.table"] != fresh["embedding.table"]).any()
    for name in report.new:
        assert params[name] is fresh[name]
    words = report.report
    assert f"{len(report.taken)} taken" in words
    assert "new here: heads.label.output.bias" in words


def test_a_checkpoint_may_be_named(finished):
    program = program_with()
    fresh = program.init(0).params
    (earlier, _), (newest, _) = (
        transfer(fresh, folder, program.model)
        for folder in (finished / "checkpoints" / "8", finished)
    )
    name = "embedding.table"
    arrays = {
        step: dict(read_arrays(finished / "checkpoints" / str(step), (f"params/{name}",)))
        for step in (8, 12)
    }
    np.testing.assert_array_equal(earlier[name], arrays[8][f"params/{name}"])
    np.testing.assert_array_equal(newest[name], arrays[12][f"params/{name}"])
    with pytest.raises(ConfigError, match=r"--step 9: no such checkpoint; .* contains 8, 12"):
        transfer(fresh, finished / "checkpoints" / "9", program.model)


def test_a_run_says_what_it_took_and_starts_there(finished, tmp_path, capsys):
    config = dataclasses.replace(tiny_config(steps=3, eval_interval=1), init_from=str(finished))
    train(config, tmp_path / "tuned")
    output = capsys.readouterr().out
    assert f"parameters from {finished}" in output
    # A loss near that of the trained model, not that of chance.
    lines = [line for line in output.splitlines() if "validation loss" in line]
    losses = [float(line.split("loss ")[1].split(",")[0]) for line in lines]
    assert losses[0] < np.log(258) - 0.3


def test_other_tokens_are_refused_and_more_tokens_are_not(finished, tmp_path):
    tokenizer = tiny_config().data.tokenizer
    origin = open_named(finished, "init_from")
    check_same_tokens(tokenizer.fit([]), origin)
    check_same_tokens(tokenizer.fit([], MaskedLM.special_tokens), origin)
    text = ["the dog chased another dog and the cat"] * 20
    trained = TrainTokenizer(vocab_size=262).fit(text)
    with pytest.raises(ConfigError) as error:
        check_same_tokens(trained, origin)
    assert f"--init-from {finished}: its tokenizer differs: token 0 is" in str(error.value)
    path = f"--data.tokenizer TokenizerFile --data.tokenizer.path {finished / 'tokenizer'}"
    assert path in str(error.value)


@pytest.mark.more
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.quick("2")
def test_frozen_parameters_keep_their_bits_and_have_no_moments(parts):
    settings = {"frozen": ("embedding.*", "*.attention.*"), "gradient_accumulation": parts}
    program = program_of(tiny_config().model, optimizer=OPTIMIZER, **settings)
    before = jax.tree.map(np.asarray, program.init(0).params)
    state, (metrics,) = stepped(program, batch_for(program.model))
    for name, value in state.params.items():
        frozen = name.startswith("embedding.") or ".attention." in name
        assert (np.asarray(value) == before[name]).all() == frozen, name
    moments = sum(x.size for x in jax.tree.leaves(state.opt_state))
    learning = sum(state.params[name].size for name in program.trained)
    assert moments < 2 * learning + 10
    assert metrics["gradient_norm"] > 0


def test_patterns_that_match_nothing_or_everything_are_refused():
    model = tiny_config().model
    with pytest.raises(ConfigError, match=r"'embeding.*' matches no parameter"):
        program_of(model, frozen=("embeding.*",))
    with pytest.raises(ConfigError, match="so nothing can be trained"):
        program_of(model, frozen=("*",))
