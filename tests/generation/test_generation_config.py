import dataclasses
import json
from fnmatch import fnmatch
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
from generate_cases import their_processor

from jaxformer.config.overrides import parse
from jaxformer.errors import ConfigError
from jaxformer.functional.sampling.next_token import (
    ban_tokens,
    epsilon_filter,
    eta_filter,
    min_p_filter,
    scale_temperature,
    top_k_filter,
    top_p_filter,
    typical_filter,
)
from jaxformer.functional.sampling.penalties import ban_sequences, bias_sequences, no_repeat_ngram
from jaxformer.generation.config import (
    NEUTRAL,
    UNSUPPORTED,
    GenerationConfig,
    recommendations,
    supported_options,
)
from jaxformer.generation.decode.processors import (
    BannedAtBegin,
    EndsLater,
    ForcedFirst,
    ForcedLast,
    FrequencyPenalty,
    MinNewTokens,
    NoSourceNgram,
    OnLogits,
    OnTokens,
    PresencePenalty,
    RepetitionPenalty,
    SourcePenalty,
)
from jaxformer.io.serialization import from_json, to_json

RULES = {
    "repetition_penalty": 1.2,
    "encoder_repetition_penalty": 1.1,
    "no_repeat_ngram_size": 3,
    "encoder_no_repeat_ngram_size": 2,
    "exponential_decay_length_penalty": (5, 1.1),
    "sequence_bias": (((3, 5), -1.5),),
    "begin_suppress_tokens": (9, 12),
    "remove_invalid_values": True,
    "renormalize_logits": True,
    "bad_words_ids": ((7,), (5, 3)),
    "eos_token_id": (2, 9),
    "min_new_tokens": 4,
    "forced_bos_token_id": 6,
    "forced_eos_token_id": 2,
    "suppress_tokens": (8, 11),
}
FILTERS = {
    "do_sample": True,
    "temperature": 0.7,
    "top_k": 40,
    "top_p": 0.9,
    "min_p": 0.05,
    "typical_p": 0.95,
    "epsilon_cutoff": 0.01,
    "eta_cutoff": 0.02,
}


def test_the_defaults_take_the_most_probable_token_as_it_is():
    options = GenerationConfig()
    assert not options.samples
    assert options.end_tokens == ()
    assert options.processors() == ()
    assert GenerationConfig(do_sample=True).processors() == ()


def test_every_option_has_its_processor():
    options = GenerationConfig(**RULES, **FILTERS, presence_penalty=0.5, frequency_penalty=0.25)
    assert options.samples
    assert options.processors() == (
        OnTokens(bias_sequences, (((3, 5),), (-1.5,))),
        SourcePenalty(1.1),
        RepetitionPenalty(1.2),
        PresencePenalty(0.5),
        FrequencyPenalty(0.25),
        OnTokens(no_repeat_ngram, (3,)),
        NoSourceNgram(2),
        OnTokens(ban_sequences, (((7,), (5, 3)),)),
        MinNewTokens(4, (2, 9)),
        ForcedFirst(6),
        ForcedLast(2),
        OnLogits(jnp.nan_to_num),
        EndsLater(5, 1.1, (2, 9)),
        OnLogits(ban_tokens, ((8, 11),)),
        BannedAtBegin((9, 12), True),
        OnLogits(scale_temperature, (0.7,)),
        OnLogits(top_k_filter, (40,)),
        OnLogits(top_p_filter, (0.9,)),
        OnLogits(min_p_filter, (0.05,)),
        OnLogits(typical_filter, (0.95,)),
        OnLogits(epsilon_filter, (0.01,)),
        OnLogits(eta_filter, (0.02,)),
        OnLogits(jax.nn.log_softmax),
    )
    hash(options.processors())


@pytest.mark.torch
def test_the_order_is_that_of_transformers():
    import torch
    from transformers import GenerationConfig as TheirConfig
    from transformers.generation import GenerationMixin

    values = json.loads(json.dumps(RULES | FILTERS))
    config = TheirConfig(**values)
    ids = torch.tensor([[1, 2, 3]])
    config._eos_token_tensor = torch.tensor(values["eos_token_id"])
    model = GenerationMixin()
    model.config = SimpleNamespace(is_encoder_decoder=False)
    theirs = model._get_logits_processor(
        config, input_ids_seq_length=3, encoder_input_ids=ids, device="cpu"
    )
    ours = GenerationConfig(**RULES, **FILTERS).processors()
    assert [type(each) for each in theirs] == [their_processor(each) for each in ours]


@pytest.mark.torch
def test_options_are_those_of_transformers_and_of_openai_and_the_others_are_known():
    from transformers import GenerationConfig as TheirConfig

    ours = {field.name for field in dataclasses.fields(GenerationConfig)}
    of_openai = {"presence_penalty", "frequency_penalty"}
    assert ours - set(TheirConfig().to_dict()) == of_openai | {"seed"}
    left = set(vars(TheirConfig())) - ours - set(UNSUPPORTED)
    assert not [name for name in left if not any(fnmatch(name, each) for each in NEUTRAL)]


def test_what_is_not_honoured_is_named_in_one_warning(caplog):
    neutral = {name: values[-1] for name, values in UNSUPPORTED.items()}
    quiet = {"top_k": 3, "pad_token_id": 0, "use_cache": False, "transformers_version": "5.0"}
    assert supported_options(neutral | quiet, "A") == {"top_k": 3, "pad_token_id": 0}
    assert not caplog.records
    asked = {"num_beam_groups": 4, "guidance_scale": 1.5, "temprature": 2.0, "seed": 3}
    assert supported_options(neutral | asked | {"pad_token_id": -1, "stop_strings": "#"}, "B") == {
        "stop_strings": ["#"]
    }
    (record,) = caplog.records
    assert all(f"{name} = {value}" in record.message for name, value in asked.items())
    assert "pad_token_id = -1" in record.message


@pytest.mark.torch
@pytest.mark.parametrize("section", [None, "decoder", "text_config"])
def test_old_configs_are_read_as_transformers_reads_them(section):
    from transformers import GenerationConfig as TheirConfig

    inner = {"min_length": 3, "num_beams": 2, "eos_token_id": 7, "hidden_size": 4, "top_k": None}
    outer = {"min_length": 5, "length_penalty": 2.0, "hidden_size": 8, "vocab_size": 9}
    values = outer | ({section: inner} if section else inner)
    theirs = TheirConfig.from_model_config(dict(values)).to_dict()
    given = SimpleNamespace(hf_config=SimpleNamespace(values=values))
    ours = recommendations(SimpleNamespace(checkpoint=given, token_values=None, folder=None))
    names = {field.name for field in dataclasses.fields(GenerationConfig)} & set(theirs)
    assert ours == {name: theirs[name] for name in names if theirs[name] is not None}


def test_a_recommended_minimum_is_no_more_than_the_maximum_that_is_given():
    assert GenerationConfig.of({"min_new_tokens": 9}, {"max_new_tokens": 4}).min_new_tokens == 4
    with pytest.raises(ConfigError, match="min_new_tokens"):
        GenerationConfig.of({}, {"min_new_tokens": 9, "max_new_tokens": 4})


def test_lengths_of_all_tokens_become_those_of_the_new_ones():
    config = GenerationConfig(max_length=20, min_length=8)
    assert config.for_width(3) == GenerationConfig(max_new_tokens=17, min_new_tokens=5)
    assert config.for_width(10) == GenerationConfig(max_new_tokens=10)
    with pytest.raises(ConfigError, match="max_length = 20"):
        config.for_width(20)
    few = GenerationConfig.of({"max_length": 20, "min_length": 9}, {"max_new_tokens": 4})
    assert few.for_width(2) == GenerationConfig(max_new_tokens=4, min_new_tokens=4)
    assert GenerationConfig.of({"max_length": 20, "max_new_tokens": 5}, {}).max_length is None
    with pytest.raises(ConfigError, match="max_length"):
        GenerationConfig.of({}, {"max_length": 20, "max_new_tokens": 5})


def test_temperature_zero_is_greedy_whatever_the_filters():
    for options in (
        GenerationConfig(temperature=0.0),
        GenerationConfig(do_sample=True, temperature=0.0, top_p=0.9, repetition_penalty=1.2),
    ):
        assert not options.samples
        assert not any(isinstance(p, OnLogits) for p in options.processors())


def test_an_end_token_is_not_a_bad_word_by_itself():
    options = GenerationConfig(bad_words_ids=((2,), (1, 2)), eos_token_id=2)
    assert options.end_tokens == (2,)
    assert options.processors() == (OnTokens(ban_sequences, (((1, 2),),)),)
    assert GenerationConfig(bad_words_ids=((2,),), eos_token_id=2).processors() == ()


def test_a_least_length_needs_an_end_to_put_off():
    assert GenerationConfig(min_new_tokens=5).processors() == ()


@pytest.mark.parametrize(
    "options",
    [
        {"num_beams": 4, "num_return_sequences": 4, "length_penalty": 0.6, "early_stopping": True},
        {"num_beams": 2, "early_stopping": "never", "temperature": 0.0},
        {"do_sample": True, "num_return_sequences": 9},
        {"min_new_tokens": 5, "max_new_tokens": 5},
    ],
)
def test_these_go_together(options):
    assert dataclasses.asdict(GenerationConfig(**options)).items() >= options.items()


def test_options_of_a_command_line():
    line = "--do-sample --temperature 0.7 --eos-token-id 2 9 --stop-strings ### END --top-k 5"
    assert parse(GenerationConfig(), line.split(), "generate") == GenerationConfig(
        do_sample=True, temperature=0.7, eos_token_id=(2, 9), stop_strings=("###", "END"), top_k=5
    )
    line = "--num-beams 4 --early-stopping never --length-penalty 0.6 --eos-token-id 2"
    assert parse(GenerationConfig(), line.split(), "generate") == GenerationConfig(
        num_beams=4, early_stopping="never", length_penalty=0.6, eos_token_id=2
    )


def test_options_are_saved_as_json():
    options = GenerationConfig(**RULES, **FILTERS)
    assert from_json(json.loads(json.dumps(to_json(options))), GenerationConfig) == options
