"""`jaxformer.flax`: the surface of the Flax classes of transformers 4."""

import json
import re
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.core import freeze
from flax.training.train_state import TrainState
from flax.traverse_util import flatten_dict, unflatten_dict

import jaxformer.flax
from jaxformer.errors import ArgumentError, ConfigError, DataError
from jaxformer.flax.model import FlaxModule
from jaxformer.generation.api import generate
from jaxformer.hub.flax_api.config import as_config, options_of
from jaxformer.hub.flax_api.outputs import OUTPUTS
from jaxformer.hub.flax_classes import FLAX_CLASSES
from jaxformer.parity.tiny import TINY
from jaxformer.pretrained.auto import load
from jaxformer.pretrained.flax_params import flax_params

BERT = {**TINY["bert"], "model_type": "bert", "hidden_dropout_prob": 0.3}
IDS = np.arange(3, 15).reshape(2, 6)
MASK = np.array([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]])
SMALL = {
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 24,
}


@pytest.fixture(scope="module")
def bert():
    return jaxformer.flax.FlaxBertForMaskedLM(BERT)


def small(name, kind):
    """A small model of a class."""
    return getattr(jaxformer.flax, name)({**TINY[kind], "model_type": kind})


@pytest.fixture(scope="module")
def gpt2():
    return small("FlaxGPT2LMHeadModel", "gpt2")


@pytest.fixture(scope="module")
def bart():
    return small("FlaxBartForConditionalGeneration", "bart")


@pytest.fixture(scope="module")
def whisper():
    return small("FlaxWhisperForConditionalGeneration", "whisper")


# Names ------------------------------------------------------------------------------------------


def test_every_class_of_the_table_has_a_name_or_a_reason():
    names = [f"Flax{name}" for names in FLAX_CLASSES.values() for name in names]
    for name in names:
        if name in dir(jaxformer.flax):
            assert getattr(jaxformer.flax, name).__name__ == name
        else:
            with pytest.raises(ImportError, match=name):
                getattr(jaxformer.flax, name)


def test_a_wrong_name_says_the_nearest():
    name = "FlaxBertModle"
    with pytest.raises(ImportError, match="FlaxBertModel"):
        getattr(jaxformer.flax, name)
    assert not hasattr(jaxformer.flax, "something")


def test_the_module_of_a_model_has_init_and_apply(bert):
    variables = bert.module.init(jax.random.PRNGKey(0), IDS)
    assert bert.module.apply(variables, IDS, MASK).logits.shape == (2, 6, 131)
    module = jaxformer.flax.FlaxBertForMaskedLMModule(bert.config)
    assert isinstance(module, FlaxModule)
    expected = bert.module.apply(variables, IDS, MASK).logits
    np.testing.assert_array_equal(module.apply(variables, IDS, MASK).logits, expected)


# Calls ------------------------------------------------------------------------------------------


def test_outputs_by_attribute_key_index_and_as_a_tuple(bert):
    output = bert(IDS, MASK, output_hidden_states=True, output_attentions=True)
    assert type(output) is jaxformer.flax.FlaxMaskedLMOutput
    assert output.logits is output["logits"] is output[0] is output.to_tuple()[0]
    assert list(output) == ["logits", "hidden_states", "attentions"]
    assert [x.shape for x in output.hidden_states] == [(2, 6, 48)] * 4
    assert len(output.attentions) == 3
    plain = bert(IDS, MASK, return_dict=False)
    assert type(plain) is tuple
    np.testing.assert_allclose(plain[0], output.logits, atol=1e-6)
    doubled = jax.tree.map(lambda x: 2 * x, output)
    assert type(doubled) is type(output)
    assert np.array_equal(doubled.logits, 2 * output.logits)
    with pytest.raises(AttributeError, match="logit"):
        output.logit  # noqa: B018


def test_dropout_needs_a_key_and_takes_either_kind(bert):
    with pytest.raises(ArgumentError, match="dropout_rng"):
        bert(IDS, train=True)
    old, new = jax.random.PRNGKey(3), jax.random.key(3)
    first, second = (bert(IDS, train=True, dropout_rng=key).logits for key in (old, new))
    assert np.array_equal(first, second)
    assert not np.allclose(first, bert(IDS).logits)


def test_a_masked_head_attends_to_nothing(bert):
    masked = np.ones((3, 6))
    masked[0, 1] = 0
    output = bert(IDS, head_mask=masked, output_attentions=True)
    assert np.all(np.asarray(output.attentions[0])[:, 1] == 0)
    assert not np.allclose(output.logits, bert(IDS).logits)


def test_positions_of_roberta_are_rows_of_its_table():
    values = {**TINY["roberta"], "model_type": "roberta"}
    model = jaxformer.flax.FlaxRobertaModel(values)
    rows = values["pad_token_id"] + 1 + np.arange(6)[None, :].repeat(2, axis=0)
    given = model(IDS + 10, position_ids=rows)[0]
    np.testing.assert_allclose(given, model(IDS + 10)[0], atol=1e-6)


@pytest.mark.more
def test_transformations_and_shardings(bert):
    params = bert.params
    plain = bert(IDS, params=params).logits
    jitted = jax.jit(lambda p, ids: bert(ids, params=freeze(p)).logits)(params, IDS)
    np.testing.assert_allclose(jitted, plain, atol=1e-6)
    mapped = jax.vmap(lambda ids: bert(ids[None], params=params).logits[0])(jnp.asarray(IDS))
    np.testing.assert_allclose(mapped, plain, atol=1e-6)
    mesh = jax.make_mesh((2, 4), ("data", "model"), (jax.sharding.AxisType.Auto,) * 2)
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    ids = jax.device_put(IDS, rows)
    sharded = jax.tree.map(
        lambda x: jax.device_put(x, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())),
        params,
    )
    found = jax.jit(lambda p, ids: bert(ids, params=p).logits)(sharded, ids)
    np.testing.assert_allclose(found, plain, atol=1e-5)


def test_a_step_of_someone_elses_training(bert):
    """The loop of run_flax_mlm: their state, their loss, our model."""
    state = TrainState.create(apply_fn=bert.__call__, params=bert.params, tx=optax.adamw(1e-2))

    @jax.jit
    def step(state, ids, key):
        def loss(params):
            logits = state.apply_fn(ids, params=params, dropout_rng=key, train=True)[0]
            return optax.softmax_cross_entropy_with_integer_labels(logits, ids).mean()

        value, gradients = jax.value_and_grad(loss)(state.params)
        return state.apply_gradients(grads=gradients), value

    losses = []
    for number in range(5):
        state, value = step(state, IDS, jax.random.PRNGKey(number))
        losses.append(float(value))
    assert losses[-1] < losses[0]
    assert jax.tree.structure(state.params) == jax.tree.structure(bert.params)


@pytest.mark.more
def test_gradients_with_checkpointing_are_the_same():
    model = jaxformer.flax.FlaxBertForMaskedLM(BERT)
    again = jaxformer.flax.FlaxBertForMaskedLM(BERT, gradient_checkpointing=True)

    def gradients(model):
        def total(params):
            return jnp.square(model(IDS, params=params).logits).sum()

        return jax.jit(jax.grad(total))(model.params)

    for one, other in zip(*map(jax.tree.leaves, map(gradients, (model, again))), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.quick("marian")
@pytest.mark.parametrize("kind", ["bart", "marian", "pegasus"])
def test_without_its_inputs_a_decoder_reads_those_of_the_encoder(kind):
    name = "FlaxMarianMTModel" if kind == "marian" else f"Flax{kind.title()}Model"
    model = small(name, kind)
    pad, start = model.config.pad_token_id, model.config.decoder_start_token_id
    shifted = jaxformer.flax.shift_tokens_right(jnp.asarray(IDS), pad, start)
    np.testing.assert_array_equal(model(IDS)[0], model(IDS, decoder_input_ids=shifted)[0])


# What moves or names arrays, and a fusion, which is counted by what is in it.
_MOVES = {"bitcast", "copy", "fusion", "parameter", "slice", "transpose"}


@pytest.mark.slow
@pytest.mark.optimized
@pytest.mark.parametrize("kind", ["bert", "gpt2", "whisper"])
def test_a_jitted_call_compiles_to_what_the_model_does(kind, request, tmp_path):
    """The instructions of both programs, where the layers lie apart in one and not in the other."""
    door = request.getfixturevalue(kind)
    door.save_pretrained(tmp_path)
    model = load(tmp_path, scan_layers=False)
    inputs = {"input_ids": jnp.asarray(IDS)}
    if kind == "whisper":
        inputs = {"input_features": jnp.ones((2, 20, 60)), "decoder_input_ids": jnp.asarray(IDS)}

    def program(function, params):
        compiled = jax.jit(function).lower(params, inputs).compile()
        names = re.findall(r"^ +(?:ROOT )?%?\S+ = .*? ([a-z][a-z-]*)\(", compiled.as_text(), re.M)
        cost = compiled.cost_analysis()
        return Counter(name for name in names if name not in _MOVES), cost

    found, cost = program(lambda p, x: door(**x, params=p).logits, door.params)
    expected, own = program(lambda p, x: model._outputs(p, x)["logits"], model.parameters)
    assert found["dot"] + found["convolution"] + found["custom-call"] > 0
    assert found == expected
    assert cost["flops"] == own["flops"]
    assert cost["bytes accessed"] <= 1.02 * own["bytes accessed"]


@pytest.mark.slow
def test_features_of_a_dual_encoder_are_its_embeddings():
    model = small("FlaxCLIPModel", "clip")
    size = model.program.checkpoint.config.image
    pixels = np.ones((3, size.channels, *size.image_size), np.float32)
    output = model(IDS, pixels)
    for name, given in (("text", IDS), ("image", pixels)):
        found = getattr(model, f"get_{name}_features")(given)
        unit = found / np.linalg.norm(found, axis=-1, keepdims=True)
        np.testing.assert_allclose(output[f"{name}_embeds"], unit, atol=1e-5)
    assert type(output.to_tuple()[-1]) is tuple


# Parameters -------------------------------------------------------------------------------------


def test_the_tree_is_that_of_flax_params(bert, tmp_path):
    bert.save_pretrained(tmp_path)
    theirs = flatten_dict(flax_params(load(tmp_path)))
    ours = flatten_dict(bert.params)
    assert set(theirs) == bert.required_params == set(ours)
    for path, array in theirs.items():
        np.testing.assert_array_equal(ours[path], array)
        assert flatten_dict(bert.params_shape_tree)[path].shape == array.shape


def test_params_may_be_kept_outside(tmp_path, bert):
    bert.save_pretrained(tmp_path)
    model, params = jaxformer.flax.FlaxBertForMaskedLM.from_pretrained(tmp_path, _do_init=False)
    with pytest.raises(ValueError, match="_do_init"):
        model.params  # noqa: B018
    with pytest.raises(ValueError, match="_do_init"):
        model(IDS)
    assert np.array_equal(model(IDS, params=params).logits, bert(IDS).logits)
    shapes = jax.eval_shape(model.init_weights, jax.random.PRNGKey(0))
    assert jax.tree.map(lambda x: x.shape, shapes) == jax.tree.map(lambda x: x.shape, params)


def test_params_of_another_tree_are_refused(bert):
    flat = {k: x for k, x in flatten_dict(bert.params).items() if "word_embeddings" not in k}
    with pytest.raises(ArgumentError, match=r"word_embeddings.*missing"):
        bert(IDS, params=unflatten_dict(flat))
    flat = flatten_dict(bert.params)
    flat["cls", "predictions", "bias"] = jnp.zeros(7)
    with pytest.raises(ArgumentError, match=r"cls/predictions/bias.*\(7,\).*\(131,\)"):
        bert.params = unflatten_dict(flat)


@pytest.mark.more
def test_casts(bert):
    mask = unflatten_dict({path: path[-1] != "scale" for path in flatten_dict(bert.params)})
    cast = flatten_dict(bert.to_bf16(bert.params, mask))
    assert {str(x.dtype) for path, x in cast.items() if path[-1] == "scale"} == {"float32"}
    assert {str(x.dtype) for path, x in cast.items() if path[-1] != "scale"} == {"bfloat16"}
    assert all(
        x.dtype == jnp.float32 for x in jax.tree.leaves(bert.to_fp32(bert.to_fp16(bert.params)))
    )
    half = jaxformer.flax.FlaxBertForMaskedLM(BERT, dtype=jnp.bfloat16)
    assert all(x.dtype == jnp.float32 for x in jax.tree.leaves(half.params))
    np.testing.assert_allclose(half(IDS).logits, bert(IDS).logits, atol=0.05)


# Files ------------------------------------------------------------------------------------------


def test_files_keep_dtype_shards_and_sizes(bert, tmp_path):
    bert.save_pretrained(tmp_path, params=bert.to_bf16(bert.params), max_shard_size="40kB")
    assert len(list(tmp_path.glob("flax_model-*.msgpack"))) > 1
    model = jaxformer.flax.FlaxBertForMaskedLM.from_pretrained(tmp_path)
    assert all(x.dtype == jnp.bfloat16 for x in jax.tree.leaves(model.params))
    bert.save_pretrained(tmp_path)
    assert [path.name for path in tmp_path.glob("*.msgpack*")] == ["flax_model.msgpack"]


@pytest.mark.more
def test_a_subfolder_and_fields_as_arguments(bert, tmp_path):
    bert.save_pretrained(tmp_path / "text_encoder")
    body = jaxformer.flax.FlaxBertModel.from_pretrained(tmp_path, subfolder="text_encoder")
    assert body(IDS).pooler_output.shape == (2, 48)
    auto = jaxformer.flax.FlaxAutoModelForSequenceClassification
    model = auto.from_pretrained(tmp_path, subfolder="text_encoder", num_labels=5)
    assert type(model).__name__ == "FlaxBertForSequenceClassification"
    assert model(IDS)[0].shape == (2, 5)


@pytest.mark.more
def test_arrays_of_another_shape_are_refused_or_new(bert, tmp_path, caplog):
    bert.save_pretrained(tmp_path)
    made = jaxformer.flax.FlaxBertModel
    with pytest.raises(DataError, match="ignore_mismatched_sizes"):
        made.from_pretrained(tmp_path, vocab_size=10)
    model = made.from_pretrained(tmp_path, vocab_size=10, ignore_mismatched_sizes=True)
    assert "shapes did not match" in caplog.text
    assert model(IDS % 10)[0].shape == (2, 6, 48)


def test_another_model_type_is_refused(bert, tmp_path):
    bert.save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"model_type = 'bert'.*'roberta'"):
        jaxformer.flax.FlaxRobertaModel.from_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"model_type = .bert.*vit"):
        jaxformer.flax.FlaxAutoModelForImageClassification.from_pretrained(tmp_path)
    with pytest.raises(ArgumentError, match="config"):
        jaxformer.flax.FlaxBertModel(7)


def test_config_is_an_object_of_values(bert, tmp_path):
    bert.save_pretrained(tmp_path)
    config = jaxformer.flax.FlaxBertModel.from_pretrained(tmp_path).config
    assert config.hidden_size == 48
    assert not config.output_attentions
    config.update({"output_attentions": True, "num_labels": 3})
    assert config.num_labels == 3
    assert as_config({"encoder": {"hidden_size": 8}}).encoder.hidden_size == 8
    assert options_of(None) == {} == options_of({})
    model = jaxformer.flax.FlaxAutoModel.from_config(config)
    assert len(model(IDS).attentions) == 3
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == [
        "BertForMaskedLM"
    ]


# Decoding ---------------------------------------------------------------------------------------


def test_a_cache_gives_what_whole_rows_give(gpt2):
    """With padding before tokens and between them."""
    holes = np.array([[0, 0, 1, 1, 1, 1], [1, 0, 1, 1, 1, 1]])
    positions = np.maximum(np.cumsum(holes, axis=1) - 1, 0)
    whole = gpt2(IDS, holes, positions).logits
    mask = np.concatenate([holes, np.zeros((2, 4), int)], axis=1)
    past = gpt2.init_cache(2, 10)
    found = []
    for part in (slice(0, 4), slice(4, 5), slice(5, 6)):
        output = gpt2(IDS[:, part], mask, positions[:, part], past_key_values=past)
        past = output.past_key_values
        found.append(output.logits)
    real = holes > 0
    np.testing.assert_allclose(np.concatenate(found, 1)[real], whole[real], atol=1e-5)


@pytest.mark.slow
def test_states_and_attention_of_steps_are_those_of_whole_rows(gpt2, bart):
    options = {"output_hidden_states": True, "output_attentions": True}
    whole = gpt2(IDS, **options)
    output = gpt2(IDS[:, :4], past_key_values=gpt2.init_cache(2, 6), **options)
    output = gpt2(IDS[:, 4:], past_key_values=output.past_key_values, **options)
    same_states(output, whole, 4)
    encoded = bart.encode(IDS, MASK)
    assert type(encoded) is jaxformer.flax.FlaxBaseModelOutput
    given = {"encoder_attention_mask": MASK, **options}
    whole = bart.decode(IDS, encoded, **given)
    np.testing.assert_allclose(whole.logits, bart(IDS, MASK, IDS).logits, atol=1e-5)
    given["decoder_attention_mask"] = np.ones((2, 6), int)
    past = bart.init_cache(2, 6, encoded)
    past = bart.decode(IDS[:, :4], encoded, past_key_values=past, **given).past_key_values
    output = bart.decode(IDS[:, 4:], encoded, past_key_values=past, **given)
    same_states(output, whole, 4)
    for found, expected in zip(output.cross_attentions, whole.cross_attentions, strict=True):
        np.testing.assert_allclose(found, expected[:, :, 4:], atol=1e-5)


def same_states(output, whole, start):
    np.testing.assert_allclose(output.logits, whole.logits[:, start:], atol=1e-5)
    assert len(output.hidden_states) == len(whole.hidden_states) > 1
    for found, expected in zip(output.hidden_states, whole.hidden_states, strict=True):
        np.testing.assert_allclose(found, expected[:, start:], atol=1e-5)
    for found, expected in zip(output.attentions, whole.attentions, strict=True):
        np.testing.assert_allclose(found, expected[:, :, start:], atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gpt2", "bart"])
def test_generation_is_that_of_the_library(kind, request, tmp_path):
    model = request.getfixturevalue(kind)
    model.save_pretrained(tmp_path)
    ours = load(tmp_path)
    inputs = {"input_ids": IDS, "attention_mask": MASK}
    for options in ({}, {"num_beams": 3}):
        found = model.generate(IDS, attention_mask=MASK, max_new_tokens=4, **options)
        expected = generate(ours, inputs, max_new_tokens=4, **options)["sequences"]
        assert np.array_equal(np.asarray(found.sequences)[:, : expected.shape[1]], expected)
    compiled = jax.jit(lambda ids, mask: model.generate(ids, attention_mask=mask, max_length=9))
    assert compiled(IDS, MASK).sequences.shape == (2, 9)
    sample = {"do_sample": True, "top_k": 20, "max_new_tokens": 6}
    drawn = [
        np.asarray(model.generate(IDS, prng_key=jax.random.PRNGKey(n), **sample).sequences)
        for n in (0, 0, 1)
    ]
    assert np.array_equal(drawn[0], drawn[1])
    assert not np.array_equal(drawn[0], drawn[2])


@pytest.mark.parametrize("beams", [1, 2])
@pytest.mark.more
def test_processors_of_the_caller_read_rows_that_end_together(gpt2, beams):
    def adds_seven(ids, scores, length):
        last = jnp.take_along_axis(ids, jnp.full((len(ids), 1), length - 1), axis=1)
        return jnp.where(last + 7 == jnp.arange(scores.shape[1])[None, :], scores, -1e9)

    options = {"attention_mask": MASK, "max_new_tokens": 3, "num_beams": beams}
    found = gpt2.generate(IDS, logits_processor=[adds_seven], eos_token_id=None, **options)
    new = IDS[:, -1:] + 7 * np.arange(1, 4)
    assert np.array_equal(found.sequences[:, 6:], new)


@pytest.mark.more
def test_a_row_has_20_tokens_by_default(gpt2):
    assert gpt2.generate(IDS, eos_token_id=None).sequences.shape == (2, 20)


def test_wrong_generation_is_refused(bert, gpt2):
    with pytest.raises(ArgumentError, match="FlaxBertForMaskedLM"):
        bert.generate(IDS)
    with pytest.raises(ConfigError, match="max_new_token"):
        gpt2.generate(IDS, max_new_token=3)
    with pytest.raises(ArgumentError, match="encoder_hidden_states"):
        gpt2(IDS, encoder_hidden_states=np.zeros((2, 3, 48)))
    with pytest.raises(ArgumentError, match="encoder"):
        bert.init_cache(2, 4)


# Composites -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_composite_of_two_checkpoints(bert, gpt2, tmp_path):
    bert.save_pretrained(tmp_path / "bert")
    gpt2.save_pretrained(tmp_path / "gpt2")
    made = jaxformer.flax.FlaxEncoderDecoderModel
    model = made.from_encoder_decoder_pretrained(
        tmp_path / "bert", decoder_model=gpt2, encoder_hidden_dropout_prob=0.0, pad_token_id=0
    )
    params = model.params
    body = jaxformer.flax.FlaxBertModel.from_pretrained(tmp_path / "bert")
    encoded = model.encode(IDS, MASK)
    np.testing.assert_allclose(encoded[0], body(IDS, MASK)[0], atol=1e-6)
    trees = flatten_dict(params["decoder"]), flatten_dict(gpt2.params)
    assert all(np.array_equal(trees[0][path], x) for path, x in trees[1].items())
    assert any("crossattention" in path for path in trees[0].keys() - trees[1].keys())
    assert model.config.encoder.hidden_dropout_prob == 0.0
    model.save_pretrained(tmp_path / "both")
    again = made.from_pretrained(tmp_path / "both")
    found, expected = (each(IDS, MASK, IDS[:, :3]).logits for each in (again, model))
    np.testing.assert_array_equal(found, expected)
    with pytest.raises(ArgumentError, match="decoder_model"):
        made.from_encoder_decoder_pretrained(tmp_path / "bert")


@pytest.mark.slow
def test_barts_decoder_keeps_its_tree_in_a_composite(bert):
    encoder = jaxformer.flax.FlaxBertModel(bert.config)
    decoder = small("FlaxBartForCausalLM", "bart")
    model = jaxformer.flax.FlaxEncoderDecoderModel.from_encoder_decoder_pretrained(
        encoder_model=encoder, decoder_model=decoder
    )
    found, expected = flatten_dict(model.params["decoder"]), flatten_dict(decoder.params)
    assert found.keys() == expected.keys()
    for path, array in expected.items():
        np.testing.assert_array_equal(found[path], array)
    assert ("model", "decoder", "layers", "0", "encoder_attn", "k_proj", "kernel") in expected
    logits = [model(ids, MASK, IDS[:, :3]).logits for ids in (IDS, IDS[:, ::-1])]
    assert np.abs(logits[0] - logits[1]).max() > 1e-4


@pytest.mark.more
def test_a_dual_encoder_of_two_checkpoints(bert, tmp_path):
    vit = small("FlaxViTModel", "vit")
    made = jaxformer.flax.FlaxVisionTextDualEncoderModel
    model = made.from_vision_text_pretrained(vision_model=vit, text_model=bert, projection_dim=16)
    assert model.params["visual_projection"]["kernel"].shape[1] == 16
    for path, array in flatten_dict(vit.params).items():
        np.testing.assert_array_equal(flatten_dict(model.params["vision_model"])[path], array)


def test_outputs_have_the_fields_of_transformers():
    for made in OUTPUTS.values():
        values = {name: jnp.zeros(1) for name in made.fields}
        assert list(made(**values)) == list(made.fields)


@pytest.mark.more
def test_electra_reads_the_second_segment_where_none_is_given():
    """As its old class did; PyTorch's reads the first."""
    model = jaxformer.flax.FlaxElectraModel(SMALL | {"embedding_size": 8, "model_type": "electra"})
    ids = np.arange(6).reshape(2, 3)
    found = model(ids).last_hidden_state
    given = model(ids, token_type_ids=np.ones_like(ids)).last_hidden_state
    np.testing.assert_array_equal(found, given)
    assert np.abs(found - model(ids, token_type_ids=0 * ids).last_hidden_state).max() > 1e-3


@pytest.mark.more
def test_the_text_tower_of_clip_has_a_pooled_output():
    values = SMALL | {"eos_token_id": 39, "max_position_embeddings": 9}
    output = jaxformer.flax.FlaxCLIPTextModel(values)(np.array([[1, 5, 39]]))
    assert list(output) == ["last_hidden_state", "pooler_output"]
    np.testing.assert_array_equal(output.pooler_output, output.last_hidden_state[:, 2])


@pytest.mark.parametrize("name", ["num_labls", "sed"])
def test_an_option_that_nothing_reads_is_refused(name, tmp_path):
    own = jaxformer.flax.FlaxBertForSequenceClassification
    own(SMALL).save_pretrained(tmp_path)
    fine = own.from_pretrained(tmp_path, hidden_dropout_prob=0.3, num_labels=2, from_pt=True)
    assert fine.config.hidden_dropout_prob == 0.3
    with pytest.raises(ArgumentError, match=name):
        own.from_pretrained(tmp_path, **{name: 3})


@pytest.mark.more
def test_the_last_state_of_roberta_prelayernorm_is_that_of_its_last_layer():
    """As its old class gave it; today's transformers normalises it."""
    model = jaxformer.flax.FlaxRobertaPreLayerNormModel(SMALL | {"num_hidden_layers": 2})
    found = model(np.array([[4, 5, 6]]), output_hidden_states=True)
    last, output = np.asarray(found.hidden_states[-1]), np.asarray(found.last_hidden_state)
    centred = last - last.mean(axis=-1, keepdims=True)
    normal = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-12)
    assert np.abs(last - output).max() > 1e-3
    np.testing.assert_allclose(output, normal, rtol=2e-5, atol=2e-5)
