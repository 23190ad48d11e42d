"""Small Whisper models with random weights, and sounds for them."""

import json

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from jaxformer.parity.reference import Reference, save_random

# Words, then the end, then what is special; the last 31 are timestamps from 0.00 to 0.60.
END, START, ENGLISH, GERMAN, FRENCH = 90, 91, 92, 93, 94
TRANSLATE, TRANSCRIBE, PREVIOUS, NO_SPEECH, NO_TIMESTAMPS = 95, 96, 97, 98, 99
FIRST_TIMESTAMP = 100
VOCABULARY = 131
STATES = 30
FRAMES, HOP, RATE = 2 * STATES, 160, 16_000
WINDOW = FRAMES * HOP
"""The samples of a window, 0.6 seconds."""

GENERATION = {
    "begin_suppress_tokens": [3, END],
    "suppress_tokens": [START, TRANSLATE, TRANSCRIBE, PREVIOUS, NO_SPEECH],
    "bos_token_id": END,
    "eos_token_id": END,
    "pad_token_id": END,
    "decoder_start_token_id": START,
    "is_multilingual": True,
    "lang_to_id": {"<|en|>": ENGLISH, "<|de|>": GERMAN, "<|fr|>": FRENCH},
    "task_to_id": {"transcribe": TRANSCRIBE, "translate": TRANSLATE},
    "max_initial_timestamp_index": 20,
    "max_length": 40,
    "no_timestamps_token_id": NO_TIMESTAMPS,
    "prev_sot_token_id": PREVIOUS,
    "alignment_heads": [[0, 1], [1, 3], [1, 5]],
    "return_timestamps": False,
}
PREPROCESSOR = {
    "feature_extractor_type": "WhisperFeatureExtractor",
    "feature_size": 20,
    "sampling_rate": RATE,
    "hop_length": HOP,
    "n_fft": 400,
    "chunk_length": 0.6,
}
ACCEPTED = {
    "temperature": (0.0,),
    "compression_ratio_threshold": None,
    "logprob_threshold": None,
    "no_speech_threshold": None,
}
"""Options with which no window is written twice."""


def sound(samples, seed=0):
    """Tones that come and go, float32."""
    generator = np.random.default_rng(seed)
    time = np.arange(samples) / RATE
    pitch = 300 + 200 * np.sin(2 * np.pi * 1.3 * time)
    loudness = 0.4 * (1 + np.sin(2 * np.pi * 2.1 * time)) / 2
    noise = 0.05 * generator.normal(size=samples)
    return (loudness * np.sin(2 * np.pi * np.cumsum(pitch) / RATE) + noise).astype(np.float32)


def write_files(folder, **generation):
    """Writes the tokenizer and the settings of generation and of sounds."""
    pieces = {f"Ġw{number}" if number % 3 else f"x{number}": number for number in range(END)}
    pieces |= {f"<|{number}|>": number for number in range(END, VOCABULARY)}
    tokenizer = Tokenizer(models.BPE(pieces, []))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "generation_config.json").write_text(json.dumps(GENERATION | generation))
    (folder / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR))


def save_whisper(folder):
    """Saves a small random model, and returns that of transformers."""
    name = "WhisperForConditionalGeneration"
    save_random("whisper", name, folder)
    write_files(folder)
    return Reference(folder, name).model


def write_words(folder):
    """Writes a tokenizer that cuts a text at its blanks: "w1 w2"."""
    words = {f"w{number}": number for number in range(END)}
    words |= {f"<|{number}|>": number for number in range(END, VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens([f"<|{number}|>" for number in range(END, VOCABULARY)])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"eos_token": f"<|{END}|>", "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
