"""`configs/pretrain.py`: the pre-training of a checkpoint goes on, whatever its family."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from corpora import write_rows
from hf_checkpoints import SENTENCES
from tuned_runs import shipped

from jaxformer.config import load_config
from jaxformer.data import CausalLM, Denoising, Files, MaskedLM, SpanCorruption, TokenizerFile
from jaxformer.errors import ConfigError
from jaxformer.io.components import with_values
from jaxformer.pretrained.auto import load
from jaxformer.training.loop import train
from jaxformer.training.resolve import fill
from jaxformer.training.transfer.data_form import pretraining_objective

pytestmark = pytest.mark.torch
CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """A table with a text in each row, as people have them."""
    file = tmp_path_factory.mktemp("text") / "text.jsonl"
    return write_rows(file, [{"text": sentence} for sentence in SENTENCES])


OBJECTIVES = {
    "llama": CausalLM(begin_of_text=True),
    "gpt2": CausalLM(begin_of_text=True),
    "bert": MaskedLM(),
    "roberta": MaskedLM(),
    "bert_classifier": MaskedLM(),
    "t5": SpanCorruption(),
    "bart": Denoising(),
}


def experiment(origin, text, **fields):
    return shipped("pretrain", origin, source=Files(text), **{"batch_size": 2} | fields)


@pytest.mark.parametrize("kind", OBJECTIVES)
@pytest.mark.quick("bert", "gpt2")
def test_the_checkpoint_says_what_is_learned(checkpoint, text, kind):
    config = fill(experiment(checkpoint(kind), text)).config
    assert config.data.objective == OBJECTIVES[kind]
    assert config.data.sequence_length <= 64 or kind in ("gpt2", "llama")
    assert fill(config).config == config
    named = experiment(checkpoint(kind), text, objective=CausalLM())
    assert fill(named).config.data.objective == CausalLM()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["llama", "bert", "t5", "bart"])
def test_it_trains_from_the_checkpoints_parameters(tmp_path, checkpoint, text, kind):
    """At a rate of 0 the parameters stay those of the checkpoint, every one of them."""
    still = {"optimizer.schedule.learning_rate": 0.0}
    config = with_values(experiment(checkpoint(kind), text), still)
    result = train(config, tmp_path / "run")
    assert np.isfinite(result.metrics["loss"])
    before, after = load(checkpoint(kind), dtype=None), load(tmp_path / "run", dtype=None)
    assert after.parameters.keys() >= before.parameters.keys()
    for name, value in before.parameters.items():
        np.testing.assert_array_equal(after.parameters[name], value, err_msg=name)


def test_documents_of_a_decoder_begin_as_its_tokenizer_begins_texts(tmp_path, checkpoint, text):
    config = fill(experiment(checkpoint("llama"), text)).config
    begin = config.data.objective.before_documents(config.data.tokenizer.fit(()))
    assert len(begin) == 1
    for validation in (None, Files(text)):
        data = replace(config.data, validation=validation).prepare(tmp_path / "run")
        end = data.tokenizer.end_of_text_id
        for side in (data.train, data.validation):
            tokens = side.examples.stream.tokens
            (ends,) = np.nonzero(tokens[:-1] == end)
            assert (tokens[ends + 1] == begin[0]).all()
            assert (tokens == begin[0]).sum() == len(ends)
    plain = replace(config.data, objective=CausalLM()).prepare(tmp_path / "plain")
    assert begin[0] not in plain.train.examples.stream.tokens


def test_what_nothing_says_is_asked_for(tmp_path, checkpoint, text):
    with pytest.raises(ConfigError, match="init-from"):
        fill(replace(experiment("", text), init_from=None))
    t5, llama = (fill(experiment(checkpoint(kind), text)).config for kind in ("t5", "llama"))
    with pytest.raises(ConfigError, match="objective"):
        pretraining_objective(t5.model, llama.data.tokenizer.fit(()))


@pytest.mark.parametrize("other", ["model", "tokenizer", "objective"])
def test_a_mismatch_is_said_before_there_is_a_run(tmp_path, checkpoint, text, other):
    config = experiment(checkpoint("llama"), text)
    if other == "model":
        model = load_config(str(CONFIGS / "tiny_decoder.py")).model
        config = replace(config, model=replace(model, vocab_size=10_000))
    elif other == "tokenizer":
        spec = TokenizerFile(str(checkpoint("bert")))
        config = replace(config, data=replace(config.data, tokenizer=spec))
    else:
        config = replace(config, data=replace(config.data, objective=SpanCorruption()))
    with pytest.raises(ConfigError):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()
