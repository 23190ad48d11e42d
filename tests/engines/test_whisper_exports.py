"""Whisper in CTranslate2 and faster-whisper: what they compute, and what they cannot hold."""

import json
from dataclasses import replace

import numpy as np
import pytest
from saved_folders import change_settings, copy_of, save_tiny
from speech_models import sound
from speech_tokenizers import save_speaker

from jaxformer.cli import main as cli
from jaxformer.data.tasks.images.pixels import PREPROCESSOR
from jaxformer.engines.converter_input import save_for_converter
from jaxformer.engines.ctranslate2 import CTranslate2Engine
from jaxformer.engines.export import description_of, export_model, verify_export
from jaxformer.engines.speech import SpeechReference, first_tokens
from jaxformer.engines.tiny import PLAIN, save_plain
from jaxformer.engines.transformers import TransformersEngine
from jaxformer.errors import ConfigError
from jaxformer.generation.api import generate
from jaxformer.generation.speech.features import log_mel_of
from jaxformer.pretrained.auto import load
from jaxformer.pretrained.model import NO_HOOKS

ODD = {
    "d_model": 36,
    "decoder_attention_heads": 2,
    "decoder_ffn_dim": 70,
    "decoder_layers": 3,
    "encoder_attention_heads": 3,
    "encoder_ffn_dim": 50,
    "encoder_layers": 1,
    "max_source_positions": 75,
    "max_target_positions": 45,
    "num_mel_bins": 23,
}
"""Sizes of a Whisper, none of which is a power of two; a window has a second and a half."""
END = PLAIN["whisper"]["eos_token_id"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    home = tmp_path_factory.mktemp("whisper") / "hf"
    save_plain("whisper", home)
    return home


@pytest.fixture(scope="module")
def exported(folder, tmp_path_factory):
    pytest.importorskip("ctranslate2")
    out = tmp_path_factory.mktemp("exported") / "out"
    export_model(load(folder, dtype=None), out, format="ctranslate2", source=str(folder))
    return out


def refused(model, tmp_path, format="ctranslate2"):
    with pytest.raises(ConfigError) as error:
        export_model(model, tmp_path / "out", format=format, source="")
    assert not (tmp_path / "out").exists()
    return str(error.value)


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize("quantise", [None, "int8"])
@pytest.mark.quick("int8")
def test_the_commands(quantise, folder, tmp_path):
    library = pytest.importorskip("ctranslate2")
    options = () if quantise is None else ("--quantise", quantise)
    out = tmp_path / "out"
    assert cli.main(["export", str(folder), str(out), "--format", "ctranslate2", *options]) == 0
    assert cli.main(["verify", str(out)]) == 0
    (receipt,) = json.loads((out / "receipt.json").read_text())["engines"]
    assert receipt["engine"] == "ctranslate2"
    assert receipt["greedy_tokens"] == 256
    if quantise is None:
        assert receipt["agrees"]
        assert receipt["max_difference"] <= 2e-5
        assert receipt["equal_greedy_tokens"] == 256
        return
    assert receipt["agrees"] is None
    # CTranslate2 rounds what it multiplies as well; without that, the weights alone differ.
    heard = SpeechReference(load(folder)).prompt().features[None]
    right = np.asarray(load(folder).encode({"input_features": heard}, NO_HOOKS)[0])
    model = library.models.Whisper(str(out), device="cpu", compute_type="float32")
    found = np.array(model.encode(library.StorageView.from_array(heard)))
    assert 0 < np.abs(found - right).mean() < 0.01 * right.std()


@pytest.mark.torch
@pytest.mark.slow
def test_odd_sizes_and_a_run(tmp_path):
    pytest.importorskip("ctranslate2")
    save_plain("whisper", tmp_path / "hf", **ODD)
    assert cli.main(["import", str(tmp_path / "hf"), str(tmp_path / "run")]) == 0
    out = tmp_path / "out"
    assert cli.main(["export", str(tmp_path / "run"), str(out), "--format", "ctranslate2"]) == 0
    assert json.loads((out / PREPROCESSOR).read_text())["chunk_length"] == 1.5
    (receipt,) = verify_export(out, [CTranslate2Engine()])
    assert not receipt.problems
    assert receipt.max_difference <= 2e-5
    assert receipt.equal_greedy_tokens == receipt.greedy_tokens == 45 - 4


@pytest.mark.torch
def test_transformers_is_compared_in_the_same_way(folder):
    (receipt,) = verify_export(folder, [TransformersEngine()])
    assert not receipt.problems
    assert receipt.max_difference <= 2e-5
    assert receipt.equal_greedy_tokens == receipt.greedy_tokens == 256


@pytest.mark.torch
def test_outputs_do_not_depend_on_what_the_engine_would_write(folder, exported):
    reference = SpeechReference(load(folder))
    prompt = reference.prompt()
    # Tokens that no model writes, with the end of a transcript among them.
    engine = CTranslate2Engine().load(exported, description_of(exported))
    for others in ((), (3, 250, END, END, 17, 4, 4, 300, 90)):
        asked = replace(prompt, decoder_tokens=prompt.decoder_tokens + others)
        right, found = reference.outputs(asked), engine.outputs(asked)
        assert found.shape == right.shape == (len(others) + 1, PLAIN["whisper"]["vocab_size"])
        np.testing.assert_allclose(found, right, atol=2e-5)


@pytest.mark.torch
def test_every_token_keeps_its_name(folder, exported):
    vocabulary = json.loads((exported / "vocabulary.json").read_text())
    tokenizer = load(folder).tokenizer
    assert vocabulary == [tokenizer.id_to_token(number) for number in range(len(vocabulary))]
    config = json.loads((exported / "config.json").read_text())
    assert config["suppress_ids_begin"] == [220, END]
    assert len(config["lang_ids"]) == 2


@pytest.mark.torch
def test_timestamps_that_the_tokenizer_lacks_are_named(folder, tmp_path):
    home = copy_of(folder, tmp_path / "hf")
    values = json.loads((home / "tokenizer.json").read_text())
    values["added_tokens"] = [
        token for token in values["added_tokens"] if not token["content"][2].isdigit()
    ]
    (home / "tokenizer.json").write_text(json.dumps(values))
    save_for_converter(load(home, dtype=None), tmp_path / "out", None)
    tokenizer = load(tmp_path / "out").tokenizer
    assert tokenizer.get_vocab_size() == PLAIN["whisper"]["vocab_size"]
    first = tokenizer.token_to_id("<|notimestamps|>") + 1
    assert [tokenizer.id_to_token(first + step) for step in (0, 1, 50)] == [
        "<|0.00|>",
        "<|0.02|>",
        "<|1.00|>",
    ]


@pytest.mark.torch
def test_faster_whisper_hears_and_writes_the_same(tmp_path):
    library = pytest.importorskip("faster_whisper")
    pytest.importorskip("ctranslate2")
    published = {"max_source_positions": 1500, "max_target_positions": 448, "encoder_layers": 1}
    save_plain("whisper", tmp_path / "hf", **published)
    model, out = load(tmp_path / "hf"), tmp_path / "out"
    export_model(model, out, format="ctranslate2", source=str(tmp_path / "hf"))
    theirs = library.WhisperModel(str(out), device="cpu")
    assert theirs.model.is_multilingual
    wave = sound(30 * 16_000)
    wave[-400:] = 0.0  # it does not mirror the end of a window
    heard = log_mel_of(model).spectrogram(wave).T
    np.testing.assert_allclose(theirs.feature_extractor(wave, padding=0), heard, atol=1e-5)
    banned = [*range(END), *range(END + 1, model.config.vocab_size)]
    banned = banned[256:]  # texts of bytes alone
    plain = {"temperature": 0.0, "suppress_tokens": banned, "max_new_tokens": 60}
    segments, about = theirs.transcribe(
        wave,
        beam_size=1,
        suppress_blank=True,
        without_timestamps=True,
        compression_ratio_threshold=None,
        log_prob_threshold=None,
        no_speech_threshold=None,
        **plain,
    )
    written = [token for segment in segments for token in segment.tokens if token < END]
    first = list(first_tokens(model))
    detected = generate(model, {"input_features": heard[None]}, max_new_tokens=1)["sequences"][0, 1]
    assert model.tokenizer.id_to_token(int(detected)) == f"<|{about.language}|>"
    found = generate(
        model,
        {"input_features": heard[None], "decoder_input_ids": [[first[0], detected, *first[2:]]]},
        max_new_tokens=60,
        suppress_tokens=tuple(banned),
    )
    ours = [int(token) for token in found["sequences"][0, 4:] if token < END]
    assert len(written) >= 30
    assert written == ours[: len(written)]


def whisper_without_names(folder):
    """A Whisper whose tokenizer has other special tokens."""
    return load(save_tiny("whisper", folder), dtype=None)


@pytest.mark.torch
def test_a_tokenizer_without_the_names_of_whisper(tmp_path):
    message = refused(whisper_without_names(tmp_path / "hf"), tmp_path)
    assert "<|endoftext|>" in message
    assert "eos_token_id = 90" in message


def test_another_activation_is_refused(tmp_path):
    home = save_tiny("whisper", tmp_path / "hf")
    change_settings(home, activation_function="relu")
    assert "activation_function = 'relu'" in refused(load(home, dtype=None), tmp_path)


def test_models_with_a_ctc_head(tmp_path):
    model = load(save_speaker(tmp_path / "hf"), dtype=None)
    message = refused(model, tmp_path)
    assert "'wav2vec2'" in message
    assert message.endswith("formats that can hold it: hf")
    with pytest.raises(ConfigError, match="verify"):
        verify_export(tmp_path / "hf", [])


@pytest.mark.parametrize("format", ["gguf", "mlx"])
def test_other_formats_name_those_that_hold_whisper(format, tmp_path, monkeypatch):
    model = whisper_without_names(tmp_path / "hf")
    assert refused(model, tmp_path, format).endswith("hold it: hf, onnx, stablehlo")
    monkeypatch.setattr("jaxformer.engines.ctranslate2.check_names", lambda *arguments: None)
    assert refused(model, tmp_path, format).endswith("hold it: hf, ctranslate2, onnx, stablehlo")
    assert "CompositeConfig" in refused(model, tmp_path, "custom-code")
