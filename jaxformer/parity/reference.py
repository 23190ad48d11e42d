"""The reference model in transformers; requires torch and transformers."""

import contextlib
import copy
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from jaxformer.errors import DataError
from jaxformer.extras import missing_extra
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.weights.names import current_name
from jaxformer.parity.tiny import TINY
from jaxformer.parity.tiny_images import TINY_CLASSES
from jaxformer.zoo import FORMATS
from jaxformer.zoo.text_parts import text_model_only

_STACKED = ("hidden_states", "encoder_hidden_states", "decoder_hidden_states")
# Falcon's eager attention adds ALiBi twice, to the scores and to the mask; the default does not.
_ATTENTION = {"falcon": "sdpa"}
# Sinusoidal tables that are frozen parameters until transformers loads a checkpoint.
_TABLES = {
    "vit_mae": ("position_embeddings", "decoder_pos_embed"),
    "whisper": ("encoder.embed_positions.weight",),
}


class Reference:
    """A checkpoint loaded by transformers, with eager attention if that is correct."""

    def __init__(self, folder: str | Path, architecture: str):
        """Loads the model in float32."""
        torch, transformers = _libraries()
        self._torch = torch
        self._precision = contextlib.nullcontext
        hf_config = HFConfig.of_folder(folder)
        kind = hf_config.take("model_type")
        read, formats = text_model_only(hf_config, FORMATS)
        self._format = formats[read.take("model_type")].bound(read, formats)
        try:
            self.model, report = getattr(transformers, architecture).from_pretrained(
                folder,
                attn_implementation=_ATTENTION.get(kind, "eager"),
                experts_implementation="eager",
                dtype=torch.float32,
                output_loading_info=True,
            )
        except Exception as error:  # third-party code may raise anything
            raise DataError(f"{folder}: transformers cannot load it: {error}") from error
        self.model.eval()
        for module in self.model.modules():
            # A sinusoidal table is computed; once loaded, transformers would train it.
            if hasattr(module, "create_weight"):
                module.requires_grad_(False)
        for name, parameter in self.model.named_parameters():
            if name.endswith(_TABLES.get(kind, ())):
                parameter.requires_grad_(False)
        problems = {name: found for name, found in report.items() if found}
        if problems:
            raise DataError(f"{folder}: transformers does not load all of it: {problems}")

    def to_float64(self) -> "Reference":
        """Converts this model to float64, with the same weights, and returns it."""
        self.model.double()
        for module in self.model.modules():
            # With this option GPT-2 computes attention scores in float32 and refuses float64.
            if hasattr(module, "reorder_and_upcast_attn"):
                module.reorder_and_upcast_attn = False
        self._precision = float64_throughout
        return self

    @cached_property
    def exact(self) -> "Reference":
        """Returns a copy in float64 with the same weights."""
        twin = copy.copy(self)
        twin.model = copy.deepcopy(self.model)
        return twin.to_float64()

    def forward(self, inputs: Mapping[str, np.ndarray], **options: Any) -> Any:
        """Returns the output of the model."""
        tensors = {name: self._torch.tensor(array) for name, array in inputs.items()}
        for name, x in tensors.items():
            tensors[name] = x.to(self.model.dtype) if x.is_floating_point() else x
        with self._precision():
            return self.model(**tensors, **options)

    def outputs(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns the outputs of the model, with hidden states stacked."""
        with self._torch.no_grad():
            found = dict(_flat(self.forward(inputs, output_hidden_states=True)))
        stacked = {name for name in found if name.rpartition(".")[2] in _STACKED}
        return {
            name: (self._stacked(value) if name in stacked else value).detach().numpy()
            for name, value in found.items()
            if name in stacked or self._torch.is_tensor(value)
        }

    def gradients(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns the gradient of the loss by the parameter names in a checkpoint."""
        self.model.zero_grad()
        self.forward(inputs).loss.backward()
        # Saving a model with the gradients as weights gives them the names of a checkpoint.
        twin, missing = copy.deepcopy(self.model), float("nan")
        with self._torch.no_grad(), tempfile.TemporaryDirectory() as folder:
            for own, parameter in zip(twin.parameters(), self.model.parameters(), strict=True):
                gradient = parameter.grad
                own.fill_(missing) if gradient is None else own.copy_(gradient)
            for buffer in twin.buffers():
                if buffer.is_floating_point():
                    buffer.fill_(missing)
            twin.save_pretrained(folder)
            saved = load_file(Path(folder, "model.safetensors"))
        return {
            current_name(name, self._format): array
            for name, array in saved.items()
            if not np.isnan(array).all()
        }

    def _stacked(self, states: Sequence[Any]) -> Any:
        """Stacks the hidden states; a last one of a different width is left out (OPT 350M)."""
        return self._torch.stack([x for x in states if x.shape == states[0].shape])


def float64_throughout() -> contextlib.AbstractContextManager:
    """Keeps float64 where transformers casts to float32: in softmax, norms and RoPE.

    Other dtypes, such as those of positions, are cast as usual, so that constants are the same as
    in float32.
    """
    import torch
    from torch.overrides import TorchFunctionMode

    def widened(x: Any) -> Any:
        if torch.is_tensor(x) and x.dtype == torch.float32:
            return x.double()
        return torch.float64 if x is torch.float32 else x

    products = torch.Tensor.matmul, torch.Tensor.__matmul__

    class StaysFloat64(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            kwargs = kwargs or {}
            if func is torch.full and abs(args[1]) > torch.finfo(torch.float32).max:
                return func(*args, **(kwargs | {"dtype": torch.float64}))
            if func in products and args[1].dtype == torch.float64:
                args = [widened(x) for x in args]
            if args and torch.is_tensor(args[0]) and args[0].dtype == torch.float64:
                if func is torch.Tensor.float:
                    return args[0]
                args = [widened(x) for x in args]
                kwargs = {name: widened(x) for name, x in kwargs.items()}
            return func(*args, **kwargs)

    return StaysFloat64()


def save_random(
    model_type: str, architecture: str, folder: str | Path, seed: int = 0, **changes: Any
) -> None:
    """Saves a small random model in which every parameter affects the output."""
    torch, transformers = _libraries()
    classes = FORMATS[model_type].architectures
    own = next((dict(each.fields) for each in classes if each.name == architecture), {})
    values = TINY[model_type] | TINY_CLASSES.get(architecture, {}) | own | changes
    config = transformers.AutoConfig.for_model(model_type, **values)
    model = getattr(transformers, architecture)._from_config(config)
    generator = torch.Generator().manual_seed(seed)
    embeddings = [x for x in model.modules() if isinstance(x, torch.nn.Embedding)]
    tables = {embedding.weight.data_ptr() for embedding in embeddings}
    biases = [x for name, x in model.named_buffers() if name == "final_logits_bias"]
    with torch.no_grad():
        # Computed tables (RoFormer's angles) are not changed.
        parameters = model.named_parameters()
        learned = ((name, x) for name, x in parameters if x.requires_grad and x.numel())
        for name, x in [*learned, *(("bias", bias) for bias in biases)]:
            # States must neither vanish nor saturate a softmax, where float32 rounding would
            # dominate: scales are near their initial values, 1 (0 in Gemma, which adds 1), and
            # matrices preserve the norm of their inputs (T5 does not scale its scores).
            is_scale = x.ndim == 1 and name.endswith("weight")
            is_matrix = x.ndim > 1 and x.data_ptr() not in tables
            spread = x[0].numel() ** -0.5 if is_matrix else 0.3
            noise = torch.randn(x.shape, generator=generator)
            x.copy_(spread * noise + (x if is_scale else 0.0))
    model.save_pretrained(folder)


def _libraries():
    try:
        import torch
        import transformers
    except ModuleNotFoundError as error:
        raise missing_extra(error, "comparing with transformers") from error
    transformers.utils.logging.disable_progress_bar()
    return torch, transformers


def _flat(outputs: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields outputs by name; outputs of a submodel are prefixed with its name."""
    for name, value in outputs.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value
