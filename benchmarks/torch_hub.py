"""Import to memory and export of the same folder by transformers and PyTorch."""

import shutil
from collections.abc import Callable

import torch
from peak_memory import baseline, measured
from transformers import LlamaForCausalLM


def load(folder: str, dtype: str | None) -> tuple[Callable[[], None], dict]:
    """Prepares loading (None: in the dtype of the files), which fills the dictionary of facts."""
    facts = baseline()

    def run():
        facts["load"] = measured(lambda: facts.update(model=_loaded(folder, dtype)))
        tensors = list(facts.pop("model").parameters())
        facts["use"] = measured(lambda: [_bytes(tensor).max() for tensor in tensors])

    return run, facts


def save(folder: str, target: str) -> tuple[Callable[[], None], dict]:
    """Prepares saving a model that is in memory."""
    facts = baseline()
    model = _loaded(folder, None)

    def run():
        facts["save"] = measured(lambda: model.save_pretrained(target))
        shutil.rmtree(target)

    return run, facts


def _loaded(folder: str, dtype: str | None) -> LlamaForCausalLM:
    return LlamaForCausalLM.from_pretrained(folder, dtype=dtype or "auto")


def _bytes(tensor: torch.Tensor):
    return tensor.detach().view(torch.uint8).numpy()
