import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from saved_folders import save_tiny
from tokenizer_folders import llama_json

import jaxformer
from jaxformer.errors import ArgumentError, ConfigError, DataError
from jaxformer.generation.api import generation_config_for
from jaxformer.generation.config import GenerationConfig
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.model_format import CountedByIds
from jaxformer.hub.tasks.classes import CausalLMTask, Seq2SeqLMTask, UnshiftedCausalLMTask
from jaxformer.parity.reference import save_random
from jaxformer.zoo import FORMATS

GENERATIVE = [
    (format, architecture)
    for format in FORMATS.values()
    for architecture in format.architectures
    # Composites are in test_captions.
    if isinstance(architecture.task, CausalLMTask | Seq2SeqLMTask) and format.bind is None
]
CAUSAL = [each for each in GENERATIVE if isinstance(each[1].task, CausalLMTask)]
NEW = 8


def prompts(vocab_size, rows=3, length=9):
    """Ids and a mask with padding of different lengths on the left."""
    # No token is the padding's of a tiny model: RoBERTa would not count it.
    ids = np.random.default_rng(0).integers(6, vocab_size, (rows, length))
    mask = np.ones_like(ids)
    mask[0, :4], mask[2, :1] = 0, 0
    return {"input_ids": ids, "attention_mask": mask}


def padded_on_the_right(left):
    """The same prompts with their padding on the other side."""
    right = {name: np.zeros_like(array) for name, array in left.items()}
    for row, real in enumerate(left["attention_mask"] > 0):
        for name, array in left.items():
            right[name][row, : real.sum()] = array[row, real]
    return right


def theirs(folder, name, inputs, **options):
    """What transformers makes of the same."""
    import torch
    import transformers

    model = getattr(transformers, name).from_pretrained(folder).eval()
    tensors = {key: torch.tensor(array) for key, array in inputs.items()}
    with torch.no_grad():
        return model.generate(
            **tensors, **options, return_dict_in_generate=True, output_scores=True
        )


@pytest.mark.torch
@pytest.mark.parametrize(
    ("format", "architecture"), GENERATIVE, ids=[each.name for _, each in GENERATIVE]
)
@pytest.mark.quick(
    "GPT2LMHeadModel", "Gemma2ForCausalLM", "T5*", "RobertaForCausalLM", "XGLM*", "BlenderbotSmall*"
)
def test_greedy_text_is_that_of_transformers(format, architecture, tmp_path):
    torch = pytest.importorskip("torch")
    folder = tmp_path / "model"
    save_random(format.model_type, architecture.name, folder)
    ours = jaxformer.load(folder)
    inputs, count = prompts(ours.config.vocab_size), NEW
    if ours.config.position.changes_at(np.ones(1)) is not None:
        # There such frequencies depend on the longest row, and on what was asked before. Ours are
        # those of the full pass, see test_engine.
        inputs, count = {name: array[1:2] for name, array in inputs.items()}, 1
    options = {"do_sample": False, "max_new_tokens": count}
    if isinstance(format.positions, CountedByIds):
        # generate() of transformers counts from 0, its forward pass from behind the padding's id.
        padding, real = ours.config.padding_id, inputs["attention_mask"]
        options["position_ids"] = torch.tensor(padding + np.cumsum(real, axis=1) * real)
    if isinstance(architecture.task, UnshiftedCausalLMTask):
        # Transformers counts padding as positions in these. Ours are those of the row alone.
        inputs = {name: array[1:2] for name, array in inputs.items()}
    expected = theirs(folder, architecture.name, inputs, **options)
    found = jaxformer.generate(ours, inputs, max_new_tokens=count, output_scores=True)
    np.testing.assert_array_equal(found["sequences"], expected.sequences.numpy())
    scores = np.stack([each.numpy() for each in expected.scores])
    largest = np.abs(np.where(np.isfinite(scores), scores, 0)).max()
    np.testing.assert_allclose(found["scores"], scores, atol=2e-5 * largest)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("format", "architecture"),
    CAUSAL,
    ids=[each.name for _, each in CAUSAL],
)
@pytest.mark.quick("GPT2LMHeadModel")
def test_every_step_is_that_of_the_full_pass(format, architecture, tmp_path):
    save_random(format.model_type, architecture.name, tmp_path)
    ours = jaxformer.load(tmp_path)
    left = prompts(ours.config.vocab_size)
    for inputs in (left, padded_on_the_right(left)):
        options = {"max_new_tokens": 4, "output_scores": True, "forced_eos_token_id": None}
        found = jaxformer.generate(ours, inputs, **options)
        count = found["scores"].shape[0]
        mask = np.concatenate([inputs["attention_mask"], np.ones((3, count), int)], axis=1)
        for row in range(3):
            for step in range(count):
                # A text so far, alone: a frequency may depend on its length.
                text = found["sequences"][row, : 9 + step][mask[row, : 9 + step] > 0]
                logits = jaxformer.forward(ours, {"input_ids": text[None]})["logits"][0, -1]
                largest = np.abs(logits).max()
                np.testing.assert_allclose(found["scores"][step, row], logits, atol=1e-5 * largest)


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    return jaxformer.load(save_tiny("gpt2", tmp_path_factory.mktemp("gpt2"), "LMHeadModel"))


@pytest.fixture(scope="module")
def t5(tmp_path_factory):
    folder = tmp_path_factory.mktemp("t5")
    return jaxformer.load(save_tiny("t5", folder, "ForConditionalGeneration"))


@pytest.mark.torch
def test_rules_and_ends_are_those_of_transformers(gpt2):
    inputs = prompts(131)
    free = jaxformer.generate(gpt2, inputs, max_new_tokens=NEW)["sequences"][:, 9:]
    options = {
        "max_new_tokens": NEW,
        "eos_token_id": [int(free[1, 2]), 7],
        "pad_token_id": 5,
        "min_new_tokens": 2,
        "no_repeat_ngram_size": 2,
        "bad_words_ids": [[int(free[0, 1])]],
        "suppress_tokens": [int(free[2, 0])],
    }
    expected = theirs(gpt2.folder, "GPT2LMHeadModel", inputs, **options)
    options |= {"bad_words_ids": ((int(free[0, 1]),),), "suppress_tokens": (int(free[2, 0]),)}
    options["eos_token_id"] = tuple(options["eos_token_id"])
    found = jaxformer.generate(gpt2, inputs, **options)
    np.testing.assert_array_equal(found["sequences"], expected.sequences.numpy())


@pytest.mark.torch
@pytest.mark.parametrize("num_beams", [1, 3])
def test_biases_of_sequences_are_those_of_transformers(gpt2, tmp_path, num_beams):
    from transformers import GenerationConfig as TheirConfig

    inputs = prompts(131)
    options = {"max_new_tokens": NEW, "num_beams": num_beams, "eos_token_id": None}
    plain = jaxformer.generate(gpt2, inputs, **options)["sequences"]
    first, second = (int(token) for token in plain[1, 9:11])
    # The usual second token goes, others come after it, one comes anywhere.
    biases = {(first, second): -9.0, (first, 17): 3.5, (40,): 0.7, (second, first, 9): 50.0}
    expected = theirs(gpt2.folder, "GPT2LMHeadModel", inputs, sequence_bias=biases, **options)
    found = jaxformer.generate(gpt2, inputs, sequence_bias=biases, **options)["sequences"]
    np.testing.assert_array_equal(found, expected.sequences.numpy())
    assert (found != plain).any()
    # A file has lists, as JSON has no tuples for keys.
    jaxformer.save(gpt2, tmp_path / "copy")
    pairs = [[list(tokens), bias] for tokens, bias in biases.items()]
    TheirConfig(sequence_bias=pairs, **options).save_pretrained(tmp_path / "copy")
    copy = jaxformer.load(tmp_path / "copy")
    np.testing.assert_array_equal(jaxformer.generate(copy, inputs)["sequences"], found)


@pytest.mark.torch
def test_an_answer_may_begin_with_what_is_given(t5):
    inputs = prompts(131) | {"decoder_input_ids": np.array([[0, 9], [0, 4], [0, 4]])}
    options = {"max_new_tokens": NEW, "decoder_start_token_id": 0}
    expected = theirs(t5.folder, "T5ForConditionalGeneration", inputs, **options)
    found = jaxformer.generate(t5, inputs, max_new_tokens=NEW)["sequences"]
    np.testing.assert_array_equal(found, expected.sequences.numpy())


def test_padding_on_the_right_is_the_same(gpt2):
    left = prompts(131)
    both = (left, padded_on_the_right(left))
    one, other = (jaxformer.generate(gpt2, each, max_new_tokens=NEW) for each in both)
    np.testing.assert_array_equal(one["sequences"][:, 9:], other["sequences"][:, 9:])
    np.testing.assert_array_equal(one["sequences"][:, :9], left["input_ids"])


def test_several_draws_of_a_prompt_lie_in_a_row(gpt2):
    options = {"max_new_tokens": NEW, "num_return_sequences": 3, "temperature": 1.3}
    found = jaxformer.generate(gpt2, prompts(131), **options)
    assert found["sequences"].shape == (9, 9 + NEW)
    assert found["log_probs"].shape == (9, NEW)
    np.testing.assert_array_equal(found["sequences"][3:6, :9], prompts(131)["input_ids"][[1] * 3])
    assert len(np.unique(found["sequences"][3:6], axis=0)) == 3
    again = jaxformer.generate(gpt2, prompts(131), **options)
    np.testing.assert_array_equal(found["sequences"], again["sequences"])


def test_the_log_probabilities_are_those_of_the_forward_pass(gpt2):
    inputs = {"input_ids": prompts(131)["input_ids"]}
    found = jaxformer.generate(gpt2, inputs, max_new_tokens=4)
    logits = jaxformer.forward(gpt2, {"input_ids": found["sequences"]})["logits"][:, 8:-1]
    expected = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    chosen = np.take_along_axis(expected, found["sequences"][:, 9:, None], 2)[..., 0]
    np.testing.assert_allclose(found["log_probs"], chosen, atol=1e-4)


def test_what_the_folder_recommends_is_done_unless_told_otherwise(gpt2, tmp_path):
    def asked(recommended, **given):
        return GenerationConfig.of(recommended, given)

    sampling = {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "eos_token_id": [3, 4]}
    assert asked(sampling) == GenerationConfig(
        do_sample=True, temperature=0.6, top_p=0.9, eos_token_id=(3, 4)
    )
    assert asked(sampling, temperature=0).samples is False
    assert asked(sampling, num_beams=4) == GenerationConfig(num_beams=4, eos_token_id=(3, 4))
    assert asked(sampling, do_sample=False) == GenerationConfig(eos_token_id=(3, 4))
    beams = {"num_beams": 4, "length_penalty": 2.0, "early_stopping": True, "top_k": 50}
    assert asked(beams) == GenerationConfig(num_beams=4, length_penalty=2.0, early_stopping=True)
    assert asked(beams, temperature=0.8) == GenerationConfig(
        do_sample=True, temperature=0.8, top_k=50
    )
    assert asked({"max_length": 20, "bad_words_ids": [[3], [4, 5]], "pad_token_id": None}) == (
        GenerationConfig(max_length=20, bad_words_ids=((3,), (4, 5)))
    )
    jaxformer.save(gpt2, tmp_path / "copy")
    (tmp_path / "copy" / "generation_config.json").write_text(json.dumps({"max_new_tokens": 3}))
    copy = jaxformer.load(tmp_path / "copy")
    assert generation_config_for(copy, {}).max_new_tokens == 3
    assert jaxformer.generate(copy, prompts(131))["sequences"].shape == (3, 12)


@pytest.mark.torch
@pytest.mark.parametrize("file", ["generation_config.json", "config.json"])
def test_a_summary_is_as_long_as_the_folder_asks(tmp_path, file, caplog):
    asked = {
        "max_length": 14, "min_length": 11, "encoder_no_repeat_ngram_size": 1, "num_beam_groups": 2,
        "early_stopping": True, "eos_token_id": 2, "decoder_start_token_id": 0, "pad_token_id": 1,
    }  # fmt: skip
    folder = save_tiny("bart", tmp_path / "bart", "ForConditionalGeneration")
    (folder / "generation_config.json").unlink()
    kept = json.loads((folder / file).read_text()) if file == "config.json" else {}
    (folder / file).write_text(json.dumps(kept | asked))
    ours, inputs = jaxformer.load(folder), prompts(131)
    generated = jaxformer.generate(ours, inputs)["sequences"]
    assert "num_beam_groups = 2" in caplog.text
    given = {name: value for name, value in asked.items() if name != "num_beam_groups"}
    expected = theirs(folder, "BartForConditionalGeneration", inputs, **given)
    np.testing.assert_array_equal(generated, expected.sequences.numpy())
    assert generated.shape[1] >= 12
    assert not np.isin(generated[0, 1:], inputs["input_ids"][0]).any()


@pytest.mark.parametrize(
    ("changes", "options", "error", "message"),
    [
        ({}, {"temprature": 1.0}, ConfigError, "temprature is not known; did you mean 'temper"),
        ({}, {"temperature": -1.0}, ConfigError, "temperature"),
        ({}, {"max_new_tokens": 0}, ConfigError, "max_new_tokens"),
        ({}, {"num_beams": 2, "top_p": 0.5}, ConfigError, "do_sample|top_p"),
        (
            {},
            {"max_new_tokens": 12},
            ConfigError,
            r"prompt of 9 tokens.*21 positions.*model has 20",
        ),
        ({"attention_mask": np.zeros((3, 9))}, {}, DataError, "row 0 is empty"),
        ({"input_ids": np.full((3, 9), 131)}, {}, DataError, "input_ids"),
        ({"pixels": np.zeros(3)}, {}, DataError, "pixels"),
    ],
)
def test_bad_input(gpt2, changes, options, error, message):
    with pytest.raises(error, match=message):
        jaxformer.generate(gpt2, prompts(131) | changes, **({"max_new_tokens": 4} | options))


def test_scalars_of_numpy_ask_for_the_same(gpt2):
    asked = {"max_new_tokens": 3, "temperature": 0.5, "seed": 7, "eos_token_id": [3, 4]}
    ours = jaxformer.generate(gpt2, prompts(131), **asked)
    numpys = {"max_new_tokens": np.int64(3), "temperature": np.float64(0.5), "seed": np.uint32(7)}
    theirs = jaxformer.generate(gpt2, prompts(131), **numpys, eos_token_id=np.array([3, 4]))
    np.testing.assert_array_equal(ours["sequences"], theirs["sequences"])


@pytest.mark.parametrize("name", ["gpt2", "t5"])
def test_prompts_are_texts_ids_or_arrays(name, request):
    model = request.getfixturevalue(name)
    texts, rows = ["the dog runs", "dog"], [[1, 2, 4], [2]]
    left = name == "gpt2"
    mask = np.array([[1, 1, 1], [0, 0, 1] if left else [1, 0, 0]])
    ids = np.array([[1, 2, 4], [0, 0, 2] if left else [2, 0, 0]])
    asked = {"max_new_tokens": 4, "pad_token_id": 0}
    expected = jaxformer.generate(model, {"input_ids": ids, "attention_mask": mask}, **asked)
    for inputs in (texts, rows, [np.array(row) for row in rows]):
        found = jaxformer.generate(model, inputs, **asked)
        np.testing.assert_array_equal(found["sequences"], expected["sequences"])
        assert ("texts" in found) == (inputs is texts)
    one = jaxformer.generate(model, "the dog runs", **asked)
    np.testing.assert_array_equal(one["sequences"], expected["sequences"][:1])
    new = one["sequences"][0, 3 if left else 1 :]
    assert one["texts"] == [model.tokenizer.decode(new).strip()]


def test_where_an_answer_begins_is_said_by_the_files(t5):
    def beginning(file, recommended=None):
        (t5.folder / "generation_config.json").write_text(json.dumps(recommended or {}))
        model = replace(t5, checkpoint=replace(t5.checkpoint, hf_config=HFConfig(file)))
        found = jaxformer.generate(model, [[5, 6]], max_new_tokens=1, eos_token_id=None)
        return found["sequences"][0, 0]

    assert beginning({"decoder_start_token_id": 3}) == 3
    assert beginning({"decoder_start_token_id": 3}, {"decoder_start_token_id": 4}) == 4
    assert beginning({"decoder_start_token_id": 3}, {"decoder_start_token_id": None}) == 3
    assert beginning({"decoder_start_token_id": None, "bos_token_id": 6}) == 6
    for wrong in (None, -1, 131, 10**40, "<s>", [1, 2]):
        with pytest.raises(ConfigError, match=r"decoder_start_token_id = .*: must be a token"):
            beginning({"decoder_start_token_id": wrong})


def test_an_end_that_the_vocabulary_lacks_is_left_out(gpt2):
    """Small models often keep the numbers of the large one's tokens."""
    hf_config = HFConfig({"eos_token_id": [50256, 7], "pad_token_id": None})
    model = replace(gpt2, checkpoint=replace(gpt2.checkpoint, hf_config=hf_config))
    assert generation_config_for(model, {}).end_tokens == (7,)
    for wrong in ({"pad_token_id": 50256}, {"eos_token_id": [1, None]}, {"eos_token_id": "x"}):
        model = replace(gpt2, checkpoint=replace(gpt2.checkpoint, hf_config=HFConfig(wrong)))
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            generation_config_for(model, {})


MASK = np.ones((3, 9), int)


@pytest.mark.parametrize(
    ("inputs", "options", "message"),
    [
        (5, {}, "inputs = 5: must be a text"),
        (None, {}, "inputs = None: must be"),
        ([], {}, r"inputs = \[\]: must be"),
        (b"Hello", {}, "inputs = b'Hello': must be"),
        ([[1], []], {}, "prompt 1 is empty"),
        ("", {}, "prompt 0 is empty"),
        ([1.5], {}, "prompt 0 must be a list of integers"),
        ([131], {}, "input_ids holds 131"),
        ([-1], {}, "input_ids holds -1"),
        ([2**32 + 1], {}, "input_ids holds 4294967297"),
        ({"input_ids": prompts(131)["input_ids"][0]}, {}, r"input_ids must have the shape \[B, T"),
        (prompts(131) | {"attention_mask": MASK[:, 1:]}, {}, "attention_mask has shape"),
        (prompts(131) | {"attention_mask": 0 * MASK}, {}, "row 0 is empty"),
        (prompts(131) | {"position_ids": 0 * MASK}, {}, "position_ids: must be left out"),
        ([1], {"max_new_tokens": 10**12}, r"max_new_tokens = 1000000000000: .*the model has 20"),
        ([1], {"num_beams": 10**8}, r"100000000 beams .* GB of memory"),
        ([1], {"temperature": 1, "num_return_sequences": 10**13}, "num_return_sequences = 1000000"),
        ([1], {"pad_token_id": 131}, "pad_token_id = 131"),
        ([1], {"eos_token_id": [1, 131]}, "eos_token_id"),
        ([1], {"bad_words_ids": [[131]]}, "bad_words_ids"),
        ([1], {"suppress_tokens": [131]}, "suppress_tokens"),
        ([1], {"forced_bos_token_id": 131}, "forced_bos_token_id"),
        ([1], {"stop_strings": ["."], "num_beams": 2}, "stop_strings"),
        ([1], {"stop_strings": ["."], "slide": True}, "stop_strings"),
        ([1], {"slide": "yes"}, "slide = 'yes': must be True or False"),
        ([1], {"output_scores": 1}, "output_scores = 1: must be True or False"),
        ([1], {"draft": "folder"}, "draft is a str: must be a model"),
    ],
    ids=str,
)
def test_what_is_wrong_is_named(gpt2, inputs, options, message):
    with pytest.raises((ArgumentError, DataError), match=message):
        jaxformer.generate(gpt2, inputs, **({"max_new_tokens": 2} | options))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention_mask": 0 * MASK}, "row 0 is empty"),
        ({"decoder_input_ids": MASK[:2]}, "decoder_input_ids has 2 rows, and input_ids has 3"),
        ({"decoder_attention_mask": MASK}, "without decoder_input_ids"),
    ],
)
def test_what_an_encoder_decoder_cannot_read(t5, changes, message):
    with pytest.raises(DataError, match=message):
        jaxformer.generate(t5, prompts(131) | changes, max_new_tokens=2)


def test_every_function_asks_for_a_model(gpt2, tmp_path):
    inputs = prompts(131)
    for call in (
        lambda: jaxformer.generate(inputs, gpt2),
        lambda: jaxformer.score(inputs, gpt2, []),
        lambda: jaxformer.chat(inputs, [{"role": "user", "content": "a"}]),
        lambda: jaxformer.forward(inputs, gpt2),
        lambda: jaxformer.gradients(inputs, gpt2),
        lambda: jaxformer.save(inputs, tmp_path / "out"),
    ):
        with pytest.raises(ArgumentError, match="pretrained is a dict: must be a model, as jaxfo"):
            call()
    with pytest.raises(ArgumentError, match="output_hidden_states = 'all'"):
        jaxformer.forward(gpt2, inputs, output_hidden_states="all")
    with pytest.raises(DataError, match="needs labels"):
        jaxformer.gradients(gpt2, inputs)
    bare = replace(gpt2, folder=None)
    with pytest.raises(DataError, match="no tokenizer"):
        jaxformer.generate(bare, "the dog")
    with pytest.raises(DataError, match=r"stop_strings = .*no tokenizer"):
        jaxformer.generate(bare, [[1]], stop_strings=["."], max_new_tokens=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "float7"}, "dtype = 'float7': must be one of float32"),
        ({"dtype": "int8"}, "dtype = 'int8': must be one of float32"),
        ({"dtype": "float64"}, "dtype = 'float64': must be one of float32"),
        ({"dtype": 5}, "dtype = 5"),
        ({"format": "pt"}, "format = 'pt'"),
        ({"max_shard_bytes": 0}, "max_shard_bytes = 0"),
        ({"max_shard_bytes": float("nan")}, "max_shard_bytes = nan"),
        ({"max_shard_bytes": "5GB"}, "max_shard_bytes = '5GB'"),
        ({"folder": 5}, "folder = 5: must be "),
        ({"folder": ""}, "folder = '': must be "),
    ],
    ids=str,
)
def test_what_cannot_be_saved(gpt2, tmp_path, options, message):
    with pytest.raises(ArgumentError, match=message):
        jaxformer.save(gpt2, **({"folder": tmp_path / "out"} | options))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "int8"}, "dtype = 'int8': must be one of float32"),
        ({"dtype": "float64"}, "dtype = 'float64': must be one of float32"),
        ({"mesh": 5}, "mesh = 5: must be None, or a mesh with the axes data, fsdp, tensor"),
        ({"mesh": jax.make_mesh((1,), ("x",))}, "mesh = .* must be None, or a mesh with the axes"),
        ({"num_layer": 1}, "num_layer: DecoderConfig has no such field; did you mean 'num_layers'"),
        ({"folder": 5}, "folder = 5: must be "),
        ({"folder": ""}, "folder = '': must be "),
        ({"folder": "no/such"}, "folder = 'no/such': must be the folder of a run or of a Hugging"),
        ({"folder": __file__}, "folder = .*: must be a folder, not a file"),
    ],
    ids=str,
)
def test_what_cannot_be_loaded(gpt2, options, message):
    with pytest.raises(ArgumentError, match=message):
        jaxformer.load(**({"folder": gpt2.folder} | options))


def test_dtypes_are_names_or_types(gpt2):
    for dtype in ("bfloat16", jnp.bfloat16, np.dtype(jnp.bfloat16)):
        loaded = jaxformer.load(gpt2.folder, dtype=dtype)
        assert {array.dtype.name for array in loaded.parameters.values()} == {"bfloat16"}
        assert loaded.config.compute_dtype == "bfloat16"
    assert jaxformer.load(gpt2.folder, dtype=np.float32).config.compute_dtype == "float32"


def test_a_window_slides_when_asked(gpt2):
    found = jaxformer.generate(gpt2, prompts(131), max_new_tokens=30, slide=True)
    assert found["sequences"].shape == (3, 39)


@pytest.mark.parametrize("options", [{}, {"temperature": 1.5, "seed": 4}])
def test_a_draft_changes_no_greedy_text(gpt2, tmp_path, options):
    draft = jaxformer.load(save_tiny("gpt2", tmp_path / "draft", "LMHeadModel", n_layer=1))
    asked = {"max_new_tokens": NEW, **options}
    found = jaxformer.generate(gpt2, prompts(131), draft=draft, proposals=3, **asked)
    assert found["sequences"].shape == (3, 9 + NEW)
    if not options:
        alone = jaxformer.generate(gpt2, prompts(131), **asked)
        np.testing.assert_array_equal(found["sequences"], alone["sequences"])


def test_a_draft_must_fit(gpt2, t5, tmp_path):
    other = jaxformer.load(save_tiny("gpt2", tmp_path / "other", "LMHeadModel", vocab_size=17))
    for draft, options, message in (
        (other, {}, "vocabulary has 17"),
        (gpt2, {"num_beams": 2}, "num_beams = 2"),
        (t5, {}, "both models must be decoders"),
    ):
        with pytest.raises(ConfigError, match=message):
            jaxformer.generate(gpt2, prompts(131), draft=draft, max_new_tokens=4, **options)


def test_scores_of_continuations(gpt2):
    inputs = prompts(131)
    greedy = jaxformer.generate(gpt2, inputs, max_new_tokens=4)
    said = greedy["sequences"][:, 9:]
    other = (said + 1) % 131
    found = jaxformer.score(
        gpt2, inputs, [[list(a), list(b)] for a, b in zip(said, other, strict=True)]
    )
    for row, (one, two) in enumerate(found):
        np.testing.assert_allclose(one.token_log_probs, greedy["log_probs"][row], atol=1e-4)
        assert one.is_greedy
        assert not two.is_greedy


def test_beams_are_laid_out_alike(t5):
    options = {"max_new_tokens": 5, "num_beams": 3, "num_return_sequences": 2}
    found = jaxformer.generate(t5, prompts(131), **options)
    assert found["sequences"].shape[0] == 6
    assert (np.diff(found["sequences_scores"].reshape(3, 2), axis=1) <= 0).all()


@pytest.mark.parametrize("storage", ["bfloat16", "int8"])
def test_a_narrow_cache_is_near(gpt2, storage):
    options = {"max_new_tokens": 2, "output_scores": True}
    wide = jaxformer.generate(gpt2, prompts(131), **options)["scores"]
    narrow = jaxformer.generate(gpt2, prompts(131), storage=storage, **options)["scores"]
    assert 0 < np.abs(wide - narrow).max() < 0.05 * np.abs(wide).max()
    with pytest.raises(ConfigError, match="storage = 'int4'"):
        jaxformer.generate(gpt2, prompts(131), storage="int4", max_new_tokens=2)


@pytest.mark.torch
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_stop_strings_end_rows_as_in_transformers(kind, tmp_path):
    transformers = pytest.importorskip("transformers")
    from hf_checkpoints import save_checkpoint

    folder = save_checkpoint(kind, tmp_path / "model", vocab_size={"gpt2": 400, "llama": 700}[kind])
    if kind == "llama":  # bytes are decoded at the end of their run
        for file in folder.glob("*token*"):
            file.unlink()
        llama_json().save(str(folder / "tokenizer.json"))
        (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "LlamaTokenizer"}')
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    model, options = jaxformer.load(folder), {"max_new_tokens": 10}
    text = "Nobody sells"
    asked = jaxformer.generate(model, text, **options)
    (free,), whole = asked["texts"], tokenizer.decode(asked["sequences"][0])
    inputs = dict(tokenizer(text, return_tensors="np"))
    for start in range(1, len(free) - 2, 5):
        strings = [free[start : start + 2], "no such words"]
        # There a string may begin in the prompt.
        if whole.index(strings[0]) < whole.index(text) + len(text):
            continue
        expected = theirs(
            folder,
            model.checkpoint.architecture.name,
            inputs,
            stop_strings=strings,
            tokenizer=tokenizer,
            **options,
        ).sequences.numpy()
        found = jaxformer.generate(model, text, stop_strings=strings, **options)
        np.testing.assert_array_equal(found["sequences"], expected)
        assert found["texts"] == [free[: free.index(strings[0])]]
        kept = jaxformer.generate(
            model, inputs, stop_strings=strings, output_scores=True, **options
        )
        np.testing.assert_array_equal(kept["sequences"], expected)
        assert len(kept["scores"]) == kept["log_probs"].shape[1] == found["log_probs"].shape[1]


def test_rows_end_at_their_own_stop_strings_and_files_may_recommend_them(tmp_path):
    from hf_checkpoints import save_checkpoint

    folder = save_checkpoint("gpt2", tmp_path / "model", vocab_size=400)
    model, texts = jaxformer.load(folder), ["Nobody sells", "She paints the"]
    options = {"max_new_tokens": 8, "eos_token_id": None, "do_sample": True, "seed": 4}
    free = jaxformer.generate(model, texts, **options)
    stop = [free["texts"][0][2:4]]
    file = folder / "generation_config.json"
    recommended = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(recommended | {"stop_strings": stop[0]}))
    found = jaxformer.generate(jaxformer.load(folder), texts, **options)
    for text, expected in zip(found["texts"], free["texts"], strict=True):
        assert text == expected.partition(stop[0])[0]
    alone = jaxformer.generate(model, texts[:1], stop_strings=stop, **options)
    assert alone["texts"] == found["texts"][:1]
    length = alone["log_probs"].shape[1]
    assert (found["log_probs"][0, length:] == 0).all()
