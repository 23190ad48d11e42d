"""transformers in PyTorch; vLLM, SGLang and TGI read the same folder."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxformer.data.tokenizers.files import tokenizer_file
from jaxformer.engines.base import Engine, LoadedModel, Prompt
from jaxformer.extras import optional_module
from jaxformer.io.model_files import CONFIG, read_object

_PURPOSE = "the engine transformers"


class TransformersEngine(Engine):
    """transformers with PyTorch, in float32 on a CPU."""

    name = "transformers"
    module = "transformers"

    def require(self) -> None:
        super().require()
        optional_module("torch", _PURPOSE)

    def load(self, folder: Path, description: Mapping[str, str]) -> LoadedModel:
        return TransformersModel(folder, load_torch(folder, "float32"))


def load_torch(folder: Path, dtype: str) -> Any:
    """Loads the class that config.json names, for inference with a dtype."""
    torch: Any = optional_module("torch", _PURPOSE)
    library: Any = optional_module("transformers", _PURPOSE)
    (name, *_) = (read_object(folder, CONFIG) or {})["architectures"]
    return getattr(library, name).from_pretrained(folder, dtype=getattr(torch, dtype)).eval()


class TransformersModel(LoadedModel):
    """A model of transformers, with the tokenizer of its folder, if any."""

    def __init__(self, folder: Path, model: Any, **options: Any):
        """Reads the tokenizer with options of `AutoTokenizer`."""
        self._torch: Any = optional_module("torch", _PURPOSE)
        library: Any = optional_module("transformers", _PURPOSE)
        # `generate` of a subclass may truncate sounds.
        self._generate: Any = library.GenerationMixin.generate
        self._model = model
        self._tokenizer = None
        if tokenizer_file(folder) is not None:
            self._tokenizer = library.AutoTokenizer.from_pretrained(folder, **options)

    def outputs(self, prompt: Prompt) -> np.ndarray:
        with self._torch.no_grad():
            found = self._model(**self._inputs(prompt))
        name = "logits" if "logits" in found else "last_hidden_state"
        return found[name][0, prompt.num_given - 1 :].numpy()

    def greedy(self, prompt: Prompt, count: int) -> list[int]:
        found = self._generate(
            self._model,
            **self._inputs(prompt),
            max_new_tokens=count,
            max_length=None,
            do_sample=False,
            suppress_tokens=list(prompt.suppressed) or None,
            begin_suppress_tokens=None,
            eos_token_id=None,
            forced_bos_token_id=None,
            forced_eos_token_id=None,
        )
        return found[0][-count:].tolist()

    def _inputs(self, prompt: Prompt) -> dict[str, Any]:
        """Returns the tensors of a prompt, one row each."""
        found = {name: self._torch.tensor(array) for name, array in prompt.inputs.items()}
        if "input_ids" in found:
            found["attention_mask"] = self._torch.ones_like(found["input_ids"])
        return found

    def tokenize(self, text: str) -> list[int] | None:
        if self._tokenizer is None:
            return None
        return self._tokenizer.encode(text, add_special_tokens=False)
