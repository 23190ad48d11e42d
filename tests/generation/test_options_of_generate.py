"""`jaxformer.generate`: its options, and what a folder recommends."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generate_cases import NEW, prompts, theirs, with_values
from saved_folders import save_tiny
from tokenizer_folders import llama_json

import jaxformer
from jaxformer.errors import ArgumentError, ConfigError
from jaxformer.generation.api import generation_config_for
from jaxformer.generation.config import GenerationConfig

pytestmark = pytest.mark.more


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
@pytest.mark.slow
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


@pytest.mark.more
def test_several_draws_of_a_prompt_lie_in_a_row(gpt2):
    options = {"max_new_tokens": NEW, "num_return_sequences": 3, "temperature": 1.3}
    found = jaxformer.generate(gpt2, prompts(131), **options)
    assert found["sequences"].shape == (9, 9 + NEW)
    assert found["log_probs"].shape == (9, NEW)
    np.testing.assert_array_equal(found["sequences"][3:6, :9], prompts(131)["input_ids"][[1] * 3])
    assert len(np.unique(found["sequences"][3:6], axis=0)) == 3
    again = jaxformer.generate(gpt2, prompts(131), **options)
    np.testing.assert_array_equal(found["sequences"], again["sequences"])


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
@pytest.mark.quick("config.json")
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


def test_an_end_that_the_vocabulary_lacks_is_left_out(gpt2):
    """Small models often keep the numbers of the large one's tokens."""
    model = with_values(gpt2, {"eos_token_id": [50256, 7], "pad_token_id": None})
    assert generation_config_for(model, {}).end_tokens == (7,)
    for wrong in ({"pad_token_id": 50256}, {"eos_token_id": [1, None]}, {"eos_token_id": "x"}):
        model = with_values(gpt2, wrong)
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            generation_config_for(model, {})


def test_a_window_slides_when_asked(gpt2):
    found = jaxformer.generate(gpt2, prompts(131), max_new_tokens=30, slide=True)
    assert found["sequences"].shape == (3, 39)


@pytest.mark.parametrize("storage", ["bfloat16", "int8"])
@pytest.mark.more
@pytest.mark.quick("bfloat16")
def test_a_narrow_cache_is_near(gpt2, storage):
    options = {"max_new_tokens": 2, "output_scores": True}
    wide = jaxformer.generate(gpt2, prompts(131), **options)["scores"]
    narrow = jaxformer.generate(gpt2, prompts(131), storage=storage, **options)["scores"]
    assert 0 < np.abs(wide - narrow).max() < 0.05 * np.abs(wide).max()
    with pytest.raises(ConfigError, match="storage = 'int4'"):
        jaxformer.generate(gpt2, prompts(131), storage="int4", max_new_tokens=2)


@pytest.mark.torch
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
@pytest.mark.quick("gpt2")
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


@pytest.mark.slow
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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"format": "pt"}, "format = 'pt'"),
        ({"max_shard_bytes": "5GB"}, "max_shard_bytes = '5GB'"),
        ({"folder": 5}, "folder = 5: must be "),
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
