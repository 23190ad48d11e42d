"""The values of a config.json; each is read, known to be without effect, or ignored."""

import fnmatch
import json
import math
import shutil
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxformer.errors import ConfigError, did_you_mean
from jaxformer.io.model_files import CONFIG, file_in, read_json_object, read_object
from jaxformer.nn.config import MOST_LAYERS

_DEEPEST = 20
REQUIRED = object()
"""The default of a required field."""

# Fields that transformers reads for every class -> the value without an effect.
_HONOURED_BY_ALL = {
    "head_dim": None, "token_classification_bias": True, "transformers_weights": None
}  # fmt: skip
HONOURED_ELSEWHERE = {
    "attn_factor": "llama.cpp and vLLM scale the attention with it",
    "dual_chunk_attention_config": "vLLM attends within chunks of long texts",
    "layer_types": "vLLM gives the layers the windows that it names",
    "original_max_position_embeddings": "vLLM scales dynamically from this length on",
    "position_embedding_type": "transformers 4 encodes positions with it",
    "rope_interleaved": "nanotron rotates neighbouring channels",
    "sliding_window": "vLLM bounds the attention with it",
    "use_sliding_window": "vLLM bounds the attention if it is true",
}
"""Fields that transformers ignores if the class lacks them -> other programs that read them."""

# Fields that do not change the outputs of a forward pass.
_HARMLESS = (
    "_*", "architectures", "auto_map", "bad_words_ids", "begin_suppress_tokens", "bos_token_id",
    "chunk_size_feed_forward", "classifier_dropout*", "cls_token_id",
    "cross_attention_hidden_size", "decoder_start_token_id", "diversity_penalty", "do_sample",
    "dtype", "early_stopping", "encoder_no_repeat_ngram_size", "eos_token_id",
    "exponential_decay_length_penalty", "finetuning_task", "forced_*_token_id",
    "gradient_checkpointing", "id2label", "init_std", "initializer_*", "is_encoder_decoder",
    "keys_to_ignore*", "label2id", "length_penalty", "license", "mask_token_id", "max_length",
    "max_new_tokens", "min_length", "model_type", "name_or_path", "no_repeat_ngram_size",
    "num_beam*", "num_labels", "num_return_sequences", "output_*", "pad_token_id", "prefix",
    "pretraining_tp", "problem_type", "pruned_heads", "remove_invalid_values",
    "repetition_penalty", "return_dict*", "sep_token_id", "suppress_tokens",
    "task_specific_params", "temperature", "tf_*", "tokenizer_class", "top_k", "top_p",
    "torch_dtype", "torchscript", "transformers_version", "typical_p", "unk_token_id",
    "use_bfloat16", "use_cache", "xla_device",
)  # fmt: skip


class HFConfig:
    """The values of a config.json, with a record of those that were read.

    Attributes:
        values: The values, with defaults filled in.
        path: The file, for messages.
        given: The values in the file, under the names used there.
        ignored: The fields that transformers ignores, with their values; fields of nested objects
            by path ("text_config.dropout").
    """

    def __init__(self, values: Mapping[str, Any], path: str | Path = CONFIG):
        """Takes the values and, for messages, the file."""
        self.values, self.path = dict(values), Path(path)
        self.given = self.values.copy()
        self.ignored: dict[str, Any] = {}
        self._prefix = ""
        self._read: dict[str, None] = {}

    @classmethod
    def of_folder(cls, folder: str | Path) -> "HFConfig":
        """Returns the values of a folder's config.json, or raises ConfigError if there is none."""
        path = Path(folder, CONFIG)
        values = read_object(folder, CONFIG)
        if values is None:
            raise ConfigError(
                f"{path} does not exist: a folder that transformers saved has one, with "
                "model.safetensors or flax_model.msgpack"
            )
        return cls(values, path)

    def with_values(self, **values: Any) -> "HFConfig":
        """Returns a copy with some fields replaced, as if they were in the file."""
        other = self.completed(self.values | values)
        other.given = self.given | values
        return other

    def without(self, name: str) -> "HFConfig":
        """Returns a copy without a field, as if it were not in the file."""
        other = self.completed({k: v for k, v in self.values.items() if k != name})
        other.given = {k: v for k, v in self.given.items() if k != name}
        return other

    def completed(self, values: Mapping[str, Any]) -> "HFConfig":
        """Returns the same file with other values, such as renamed fields and defaults."""
        other = HFConfig(values, self.path)
        other.given = self.given
        other.ignored = self.ignored
        other._prefix = self._prefix
        return other

    def section(self, name: str, values: Mapping[str, Any]) -> "HFConfig":
        """Returns the values of a nested object; its ignored fields are added to the file's."""
        inner = HFConfig(values, f"{self.path}: {name}")
        inner.ignored = self.ignored
        inner._prefix = f"{self._prefix}{name}."
        return inner

    @property
    def last(self) -> str:
        """The last field that was read, with its value, for messages."""
        given = [name for name in self._read if name in self.values]
        return f"{given[-1]} = {self.values[given[-1]]!r}" if given else "nothing"

    def take(self, name: str, default: Any = REQUIRED) -> Any:
        """Returns the value of a field, its default in transformers, or `REQUIRED`."""
        self._read.pop(name, None)
        self._read[name] = None
        if name in self.values:
            self._check_number(name, self.values[name])
            return self.values[name]
        if default is REQUIRED:
            raise ConfigError(f"{self.path}: the field {name!r} is missing")
        return default

    def _check_number(self, name: str, value: Any) -> None:
        """Refuses unrealistic numbers before an array of that size is created."""
        if isinstance(value, list | tuple):
            for each in value:
                self._check_number(name, each)
        elif isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{self.path}: {name} = {value}: must be finite")
        elif isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise ConfigError(
                f"{self.path}: {name} has {value.bit_length()} bits: must be a 64-bit number"
            )
        elif isinstance(value, int) and "layer" in name and value > MOST_LAYERS:
            raise ConfigError(f"{self.path}: {name} = {value}: must be at most {MOST_LAYERS:,}")

    def check_depth(self) -> None:
        """Refuses objects and lists that are nested too deeply."""
        pending = [(name, value, 0) for name, value in self.values.items()]
        while pending:
            name, value, depth = pending.pop()
            if depth > _DEEPEST:
                raise ConfigError(f"{self.path}: {name}: objects and lists are nested too deeply")
            if isinstance(value, dict):
                pending += [(key, inner, depth + 1) for key, inner in value.items()]
            elif isinstance(value, list):
                pending += [(name, inner, depth + 1) for inner in value]

    def number(self, name: str, default: Any = REQUIRED) -> Any:
        """Returns the value of a field that must be a number, or null if the default is None."""
        value = self.take(name, default)
        whole = isinstance(value, int | float) and not isinstance(value, bool)
        if not whole and not (value is None and default is None):
            raise ConfigError(f"{self.path}: {name} = {value!r}: must be a number")
        return value

    def choose(self, name: str, choices: Mapping[str, Any], default: Any = REQUIRED) -> Any:
        """Returns the entry of `choices` for the value of a field."""
        value = self.take(name, default)
        if not isinstance(value, Hashable) or value not in choices:
            hint = did_you_mean(value, [choice for choice in choices if isinstance(choice, str)])
            raise ConfigError(
                f"{self.path}: {name} = {value!r} is not supported: must be one of "
                f"{', '.join(map(repr, choices))}{hint}"
            )
        return choices[value]

    def expect(self, name: str, *allowed: Any, default: Any = REQUIRED) -> None:
        """Checks that a field has a supported value; the default is the first one unless given."""
        default = allowed[0] if default is REQUIRED else default
        if (value := self.take(name, default)) not in allowed:
            raise ConfigError(
                f"{self.path}: {name} = {value!r} is not supported: only "
                f"{' or '.join(map(repr, allowed))}"
            )

    def finish(self, harmless: Sequence[str] = ()) -> None:
        """Records the unread fields as `ignored`.

        Every field that the class in transformers reads has been read or is harmless, so
        transformers ignores all others.
        """
        patterns = (*_HARMLESS, *harmless)
        for name, value in self.values.items():
            neutral = value in (None, False, {}, []) or any(
                fnmatch.fnmatchcase(name, pattern) for pattern in patterns
            )
            if name in self._read or neutral:
                continue
            if name in _HONOURED_BY_ALL and value != _HONOURED_BY_ALL[name]:
                raise ConfigError(
                    f"{self.path}: {name} = {value!r} is not supported for model_type "
                    f"{self.values.get('model_type')!r}: it changes what transformers computes"
                )
            self.ignored[self._prefix + name] = value


def write_hf_config(folder: Path, values: Mapping[str, Any], source: Path | None = None) -> None:
    """Writes the config.json of a folder, or copies that of `source` if it has the same values."""
    kept = None if source is None else file_in(source, CONFIG)
    if kept is not None and read_json_object(kept) == dict(values):
        shutil.copyfile(kept, folder / CONFIG)
        return
    text = json.dumps(dict(values), indent=2, sort_keys=True)
    (folder / CONFIG).write_text(text + "\n", encoding="utf-8")
