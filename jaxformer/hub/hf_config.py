"""The values of a config.json, each of which is used or known not to change the outputs."""

import fnmatch
import json
import shutil
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxformer.errors import ConfigError, did_you_mean
from jaxformer.io.model_files import file_in, read_json_object, read_object
from jaxformer.io.paths import AnyPath

CONFIG = "config.json"
_WEIGHTS = ("safetensors", "msgpack", "bin", "pt")
REQUIRED = object()
"""The default of a field that must be there."""

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
    """The values of a config.json, and which of them have been read.

    Attributes:
        values: The values in the file.
        path: The file, for messages.
        given: The values that the file itself has, under the names that they have there.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        path: str | Path = CONFIG,
        given: Mapping[str, Any] | None = None,
    ):
        """Takes the values; for messages, the file; and its own, if defaults were added to them."""
        self.values, self.path = dict(values), Path(path)
        self.given = dict(values if given is None else given)
        self._read: dict[str, None] = {}

    @classmethod
    def of_folder(cls, folder: str | Path) -> "HFConfig":
        """Returns the values of a folder's config.json.

        Args:
            folder: The folder.

        Raises:
            ConfigError: There is none.
            DataError: It is no JSON object, or no file of the folder.
        """
        path, values = Path(folder, CONFIG), read_object(folder, CONFIG)
        if values is None:
            raise ConfigError(
                f"{path} does not exist: a folder that transformers saved has one, with "
                "model.safetensors or flax_model.msgpack"
            )
        return cls(values, path)

    @property
    def last(self) -> str:
        """The last field that was read and is in the file, with its value, for messages."""
        given = [name for name in self._read if name in self.values]
        return f"{given[-1]} = {self.values[given[-1]]!r}" if given else "nothing"

    def take(self, name: str, default: Any = REQUIRED) -> Any:
        """Returns the value of a field.

        Args:
            name: The field.
            default: The value in transformers where the file does not have the field; without a
                default it must have it.

        Raises:
            ConfigError: The field is missing.
        """
        self._read.pop(name, None)
        self._read[name] = None
        if name in self.values:
            return self.values[name]
        if default is REQUIRED:
            raise ConfigError(f"{self.path}: the field {name!r} is missing")
        return default

    def number(self, name: str, default: Any = REQUIRED) -> Any:
        """Returns the value of a field that must be a number.

        Args:
            name: The field.
            default: As for `take`; with None the field may also be null.

        Raises:
            ConfigError: The field is missing, or not a number.
        """
        value = self.take(name, default)
        whole = isinstance(value, int | float) and not isinstance(value, bool)
        if not whole and not (value is None and default is None):
            raise ConfigError(f"{self.path}: {name} = {value!r}: must be a number")
        return value

    def choose(self, name: str, choices: Mapping[str, Any], default: Any = REQUIRED) -> Any:
        """Returns the choice that a field names.

        Args:
            name: The field.
            choices: Value of the field -> what it stands for.
            default: As for `take`.

        Raises:
            ConfigError: The value is none of the choices; names the nearest.
        """
        value = self.take(name, default)
        if not isinstance(value, Hashable) or value not in choices:
            hint = did_you_mean(value, [choice for choice in choices if isinstance(choice, str)])
            raise ConfigError(
                f"{self.path}: {name} = {value!r} is not supported: must be one of "
                f"{', '.join(map(repr, choices))}{hint}"
            )
        return choices[value]

    def expect(self, name: str, *allowed: Any, default: Any = REQUIRED) -> None:
        """Checks a field of which only some values are supported.

        Args:
            name: The field.
            *allowed: The values.
            default: As for `take`; the first of the values if it is left out.

        Raises:
            ConfigError: It has another value.
        """
        default = allowed[0] if default is REQUIRED else default
        if (value := self.take(name, default)) not in allowed:
            raise ConfigError(
                f"{self.path}: {name} = {value!r} is not supported: only "
                f"{' or '.join(map(repr, allowed))}"
            )

    def finish(self, harmless: Sequence[str] = ()) -> None:
        """Checks that no field was left unread that could change the outputs.

        Args:
            harmless: Patterns of fields that do not change them in this system.

        Raises:
            ConfigError: A field with a value is not known; names it.
        """
        patterns = (*_HARMLESS, *harmless)
        unknown = [
            name
            for name, value in self.values.items()
            if name not in self._read
            and value not in (None, False, {}, [])
            and not any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
        ]
        if unknown:
            listed = ", ".join(f"{name} = {self.values[name]!r}" for name in unknown)
            raise ConfigError(
                f"{self.path}: {listed}: not known for model_type "
                f"{self.values.get('model_type')!r}, so the model might compute something else "
                "than it should"
            )


def is_hf_checkpoint(folder: AnyPath) -> bool:
    """Returns whether a folder holds a Hugging Face checkpoint, complete or not.

    Args:
        folder: The folder.

    Raises:
        DataError: Its config.json cannot be read.
    """
    if any(True for suffix in _WEIGHTS for _ in folder.glob(f"*.{suffix}")):
        return True
    # That of a run has no model_type. It may be a link, since the files there are the user's own.
    config = folder / CONFIG
    return config.exists() and "model_type" in read_json_object(config)


def write_hf_config(folder: Path, values: Mapping[str, Any], source: Path | None = None) -> None:
    """Writes the config.json of a folder.

    Args:
        folder: The folder.
        values: What the file is to say.
        source: The folder of a config.json that is copied as it is if it says the same; None:
            there is none.
    """
    kept = None if source is None else file_in(source, CONFIG)
    if kept is not None and read_json_object(kept) == dict(values):
        shutil.copyfile(kept, folder / CONFIG)
        return
    text = json.dumps(dict(values), indent=2, sort_keys=True)
    (folder / CONFIG).write_text(text + "\n", encoding="utf-8")
