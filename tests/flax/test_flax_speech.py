"""`jaxformer.flax`: the speech classes, beside PyTorch and by their own rules."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import speech_models as speech
from flax.traverse_util import flatten_dict
from saved_folders import save_tiny

import jaxformer.flax as door
from jaxformer.errors import ArgumentError, ConfigError, DataError
from jaxformer.generation.api import generate
from jaxformer.parity.tiny import TINY
from jaxformer.pretrained.auto import load
from jaxformer.pretrained.writing import save

WHISPER = {**TINY["whisper"], "model_type": "whisper", "dropout": 0.3}
WAVES = {**TINY["wav2vec2"], "model_type": "wav2vec2"}
RNG = np.random.default_rng(0)
SPECTROGRAMS = RNG.normal(size=(3, 20, 60)).astype(np.float32)
SOUNDS = RNG.normal(size=(2, 90)).astype(np.float32)
SAMPLES = (np.arange(90) < np.array([[90], [61]])).astype(int)
IDS = RNG.integers(3, 89, size=(3, 5))
MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 0, 0, 0, 0]])


@pytest.fixture(scope="module")
def whisper():
    return door.FlaxWhisperForConditionalGeneration(WHISPER)


@pytest.fixture(scope="module")
def pre_training():
    return door.FlaxWav2Vec2ForPreTraining(WAVES)


def frames_of(model, samples=90):
    return model._get_feat_extract_output_lengths(samples)


# Names and outputs ------------------------------------------------------------------------------


def test_names_bases_and_what_the_auto_classes_choose(whisper):
    assert isinstance(whisper, door.FlaxWhisperPreTrainedModel)
    assert issubclass(door.FlaxWav2Vec2ForCTC, door.FlaxWav2Vec2PreTrainedModel)
    assert not isinstance(whisper, door.FlaxWav2Vec2PreTrainedModel)
    chosen = door.FlaxAutoModelForSpeechSeq2Seq.classes
    assert {kind: each.__name__ for kind, each in chosen.items()} == {
        "speech-encoder-decoder": "FlaxSpeechEncoderDecoderModel",
        "whisper": "FlaxWhisperForConditionalGeneration",
    }
    assert door.FlaxAutoModel.classes["wav2vec2"] is door.FlaxWav2Vec2Model
    with pytest.raises(ArgumentError, match="base"):
        door.FlaxWhisperPreTrainedModel(WHISPER)


@pytest.mark.slow
def test_the_fields_of_whisper(whisper):
    options = {"output_hidden_states": True, "output_attentions": True}
    output = whisper(SPECTROGRAMS, IDS, decoder_attention_mask=MASK, **options)
    assert type(output) is door.FlaxSeq2SeqLMOutput
    assert output.logits.shape == (3, 5, 131)
    assert output.encoder_last_hidden_state.shape == (3, 30, 48)
    sizes = {name: len(x) for name, x in output.items() if isinstance(x, tuple)}
    assert sizes == {
        "decoder_hidden_states": 3,
        "decoder_attentions": 2,
        "cross_attentions": 2,
        "encoder_hidden_states": 4,
        "encoder_attentions": 3,
    }
    plain = whisper(input_features=SPECTROGRAMS, decoder_input_ids=IDS, return_dict=False)
    assert plain[0].shape == output.logits.shape
    classes = door.FlaxWhisperForAudioClassification(WHISPER)(SPECTROGRAMS)
    assert type(classes) is door.FlaxSequenceClassifierOutput


@pytest.mark.slow
def test_positions_of_whisper_count_the_real_tokens(whisper):
    """As the old class counted them; PyTorch's counts padding too."""
    mask = np.array([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1], [0, 1, 1, 1, 1]])
    found = whisper(SPECTROGRAMS, IDS, decoder_attention_mask=mask).logits
    for row, real in enumerate(mask > 0):
        alone = whisper(SPECTROGRAMS[row : row + 1], IDS[row : row + 1, real]).logits[0]
        np.testing.assert_allclose(found[row, real], alone, rtol=2e-5, atol=2e-5)


@pytest.mark.more
def test_a_mask_of_frames_changes_nothing_for_whisper(whisper):
    whole = whisper(SPECTROGRAMS, IDS, attention_mask=np.zeros((3, 60), int))
    np.testing.assert_array_equal(whole.logits, whisper(SPECTROGRAMS, IDS).logits)
    encoded = whisper.encode(SPECTROGRAMS)
    given = whisper.decode(IDS, encoded, encoder_attention_mask=np.zeros((3, 30), int))
    np.testing.assert_allclose(given.logits, whole.logits, atol=1e-5)


@pytest.mark.more
def test_encode_decode_and_the_cache(whisper):
    encoded = whisper.encode(SPECTROGRAMS)
    assert type(encoded) is door.FlaxBaseModelOutput
    whole = whisper(SPECTROGRAMS, IDS).logits
    np.testing.assert_allclose(whisper.decode(IDS, encoded).logits, whole, atol=1e-5)
    past = whisper.init_cache(3, 8, encoded)
    found = []
    for place in (slice(0, 3), slice(3, 5)):
        positions = np.broadcast_to(np.arange(5)[place], IDS[:, place].shape)
        options = {"decoder_position_ids": positions, "past_key_values": past}
        output = whisper.decode(IDS[:, place], encoded, **options)
        past = output.past_key_values
        found.append(output.logits)
    np.testing.assert_allclose(np.concatenate(found, 1), whole, atol=1e-5)


BAD = {
    "frames": ("Whisper", SPECTROGRAMS[:, :, :50], "pad the clips with silence to 60"),
    "samples": ("Wav2Vec2", SOUNDS[:, :5], "at least 17 samples"),
    "channels": ("Wav2Vec2", SOUNDS[:, None], "one channel"),
}


@pytest.mark.parametrize(("name", "array", "words"), BAD.values(), ids=BAD)
def test_sounds_of_another_size_are_refused(name, array, words, whisper, pre_training):
    model, more = (whisper, {"decoder_input_ids": IDS}) if name == "Whisper" else (pre_training, {})
    with pytest.raises(DataError, match=words):
        model(array, **more)


# Generation -------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"language": "<|de|>", "task": "translate"},
        {"num_beams": 2, "return_timestamps": True},
    ],
    ids=["detected", "translated", "beams and timestamps"],
)
@pytest.mark.quick("detected")
def test_transcripts_are_those_of_the_library(options, whisper, tmp_path):
    whisper.save_pretrained(tmp_path)
    speech.write_files(tmp_path)
    model = door.FlaxWhisperForConditionalGeneration.from_pretrained(tmp_path)
    options = {"max_new_tokens": 6, **options}
    found = model.generate(input_features=SPECTROGRAMS, **options).sequences
    expected = generate(load(tmp_path), {"input_features": SPECTROGRAMS}, **options)["sequences"]
    np.testing.assert_array_equal(np.asarray(found)[:, : expected.shape[1]], expected)


@pytest.mark.slow
def test_a_transcript_within_a_program_that_detects_the_language(whisper):
    model = door.FlaxWhisperForConditionalGeneration(WHISPER)
    model.generation_config.__dict__.update(speech.GENERATION)
    made = jax.jit(lambda x: model.generate(x, max_length=9).sequences)
    found = np.asarray(made(SPECTROGRAMS))
    assert found.shape == (3, 9)
    assert set(found[:, 0]) == {speech.START}
    assert set(found[:, 1]) <= {speech.ENGLISH, speech.GERMAN, speech.FRENCH}
    english = model.generate(SPECTROGRAMS, is_multilingual=False, max_length=4).sequences
    assert np.array_equal(np.asarray(english)[:, 1], [speech.NO_TIMESTAMPS] * 3)
    forced = [[1, speech.FRENCH], [2, speech.TRANSLATE]]
    given = model.generate(SPECTROGRAMS, forced_decoder_ids=forced, max_length=6).sequences
    assert set(map(tuple, np.asarray(given)[:, 1:3])) == {(speech.FRENCH, speech.TRANSLATE)}
    with pytest.raises(ArgumentError, match="input_features"):
        model.generate()


def test_a_language_that_is_not_known_is_refused(whisper):
    with pytest.raises(ConfigError, match="language"):
        whisper.generate(SPECTROGRAMS, language="xx")


# Training ---------------------------------------------------------------------------------------


def gradients(model, **options):
    """The gradients of a sum of squares, by path."""
    first = SPECTROGRAMS if model.main_input_name == "input_features" else SOUNDS
    loss = lambda p: jnp.square(model(first, params=p, **options)[0]).sum()  # noqa: E731
    return flatten_dict(jax.grad(loss)(model.params))


@pytest.mark.slow
def test_no_gradient_reaches_the_sinusoids_of_whisper(whisper):
    found = gradients(whisper, decoder_input_ids=IDS)
    still = {path for path, x in found.items() if not np.any(x)}
    # No score depends on the bias of all keys, and Whisper has none.
    assert still == {("model", "encoder", "embed_positions", "embedding")}


@pytest.mark.slow
def test_frozen_convolutions_have_no_gradient(pre_training):
    learning = gradients(pre_training, train=False)
    frozen = gradients(pre_training, freeze_feature_encoder=True)
    for path, x in frozen.items():
        if "feature_extractor" in path:
            assert np.any(learning[path])
            assert not np.any(x)
        else:
            np.testing.assert_allclose(x, learning[path], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_pre_training_draws_codes_with_its_own_key(pre_training):
    frames = frames_of(pre_training)
    masked = np.arange(frames)[None, :].repeat(2, axis=0) % 2 == 0
    keys = jax.random.PRNGKey(1), jax.random.key(2)

    def run(gumbel, temperature=1.0, train=True):
        options = {"gumbel_temperature": temperature, "train": train}
        return pre_training(
            SOUNDS, SAMPLES, masked, dropout_rng=keys[0], gumbel_rng=gumbel, **options
        )

    one, same, other = run(keys[0]), run(keys[0]), run(keys[1])
    assert type(one) is door.FlaxWav2Vec2ForPreTrainingOutput
    quantized = one.projected_quantized_states
    np.testing.assert_array_equal(quantized, same.projected_quantized_states)
    np.testing.assert_array_equal(one.projected_states, other.projected_states)
    assert not np.allclose(quantized, other.projected_quantized_states)
    # Without noise each frame has the code of the largest score.
    still = [run(key, train=False).projected_quantized_states for key in keys]
    np.testing.assert_array_equal(*still)


@pytest.mark.more
def test_frames_of_samples(pre_training):
    assert frames_of(pre_training) == pre_training(SOUNDS).projected_states.shape[1]
    counts = frames_of(pre_training, jnp.array([90, 61]))
    assert counts.tolist() == [frames_of(pre_training, 90), frames_of(pre_training, 61)]


# Beside PyTorch ---------------------------------------------------------------------------------


@pytest.mark.torch
@pytest.mark.slow
def test_a_composite_of_sound_is_pytorchs(tmp_path):
    """Both parts apart, a decode step, and greedy tokens, with padding after sounds."""
    import torch
    from transformers import SpeechEncoderDecoderModel

    folder = save_tiny("speech-encoder-decoder", tmp_path)
    theirs = SpeechEncoderDecoderModel.from_pretrained(folder, attn_implementation="eager").eval()
    model = door.FlaxAutoModelForSpeechSeq2Seq.from_pretrained(folder)
    assert model.config.tie_word_embeddings is False
    ids = IDS[:2] % model.config.decoder.vocab_size
    waves = (SOUNDS * SAMPLES).astype(np.float32)
    sounds, mask = torch.tensor(waves), torch.tensor(SAMPLES)
    with torch.no_grad():
        expected = theirs(sounds, attention_mask=mask, decoder_input_ids=torch.tensor(ids))
        start = {"decoder_start_token_id": 5, "eos_token_id": None, "pad_token_id": 0}
        options = {"max_new_tokens": 5, "do_sample": False, "num_beams": 1}
        tokens = theirs.generate(sounds, attention_mask=mask, **options, **start).numpy()
        encoder = theirs.encoder(sounds, attention_mask=mask).last_hidden_state.numpy()
    output = model(waves, SAMPLES, ids)
    close = {"atol": 2e-5, "rtol": 2e-5}
    np.testing.assert_allclose(output.logits, expected.logits, **close)
    encoded = model.encode(waves, SAMPLES)
    np.testing.assert_allclose(encoded[0], encoder, **close)
    frames = np.arange(encoded[0].shape[1]) < frames_of(model, SAMPLES.sum(1))[:, None]
    decoded = model.decode(ids, encoded, encoder_attention_mask=frames)
    np.testing.assert_allclose(decoded.logits, expected.logits, **close)
    options = {"max_new_tokens": 5, "decoder_start_token_id": 5, "pad_token_id": 0}
    found = model.generate(waves, attention_mask=SAMPLES, **options).sequences
    np.testing.assert_array_equal(found, tokens)


@pytest.mark.torch
@pytest.mark.slow
def test_whispers_gradients_are_pytorchs(tmp_path):
    import torch

    theirs = speech.save_whisper(tmp_path)
    model = door.FlaxWhisperForConditionalGeneration.from_pretrained(tmp_path)
    weights = RNG.normal(size=(*IDS.shape, 131)).astype(np.float32) / 131
    options = {"decoder_attention_mask": torch.tensor(MASK)}
    logits = theirs(torch.tensor(SPECTROGRAMS), decoder_input_ids=torch.tensor(IDS), **options)
    (logits.logits * torch.tensor(weights * MASK[..., None])).sum().backward()

    def loss(params):
        output = model(SPECTROGRAMS, IDS, decoder_attention_mask=MASK, params=params)
        return (output.logits * weights * MASK[..., None]).sum()

    found = flatten_dict(jax.grad(loss)(model.params))
    for side in ("encoder", "decoder"):
        for own, name in (("fc1", "fc1"), ("fc2", "fc2")):
            path = ("model", side, "layers", "1", own, "kernel")
            expected = theirs.get_parameter(f"model.{side}.layers.1.{name}.weight").grad.numpy().T
            scale = np.abs(expected).max()
            np.testing.assert_allclose(found[path], expected, rtol=2e-5, atol=2e-5 * scale)


@pytest.mark.more
def test_an_adapter_shortens_rows_and_comes_back(tmp_path):
    adapter = {"add_adapter": True, "num_adapter_layers": 2, "output_hidden_size": 20}
    model = door.FlaxWav2Vec2Model(WAVES | adapter)
    own = model.params["adapter"]
    assert own["layers"]["1"]["conv"]["kernel"].shape == (3, 20, 40)
    assert own["proj"]["kernel"].shape == (48, 20)
    states = model(SOUNDS, SAMPLES).last_hidden_state
    before = model._get_feat_extract_output_lengths(90, add_adapter=False)
    assert states.shape == (2, frames_of(model), 20)
    assert frames_of(model) == ((before - 1) // 2 + 2) // 2
    model.save_pretrained(tmp_path / "old")
    again = door.FlaxWav2Vec2Model.from_pretrained(tmp_path / "old")
    np.testing.assert_array_equal(again(SOUNDS, SAMPLES).last_hidden_state, states)
    save(load(tmp_path / "old", dtype=None), tmp_path / "written", format="flax")
    old, written = (tmp_path / x / "flax_model.msgpack" for x in ("old", "written"))
    assert written.read_bytes() == old.read_bytes()
    with pytest.raises(ConfigError, match="CTC"):
        door.FlaxWav2Vec2ForPreTraining(WAVES | adapter)
