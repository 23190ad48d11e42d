"""jaxformer's step of low-rank factors or of all weights, and its memory."""

import resource
from collections.abc import Callable

import numpy as np
from our_step import training_step
from shapes import random_tokens

from jaxformer.config import TrainConfig
from jaxformer.distributed import MeshConfig, make_mesh
from jaxformer.models import DecoderConfig
from jaxformer.models.lora import LoRA
from jaxformer.optim import AdamW, Constant
from jaxformer.training.logging.report import total_bytes
from jaxformer.training.step import TrainProgram


def step(
    shape: dict, batch: int, length: int, dtype: str, lora: dict | None
) -> tuple[Callable[[], None], dict]:
    """Prepares a step; `lora` has fields of `LoRA`; None: all weights are trained."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    model = DecoderConfig(**shape, scan_layers=False, compute_dtype=dtype)
    train = TrainConfig(lora=None if lora is None else LoRA(**lora))
    tokens = random_tokens(shape, batch, length)
    arrays = {
        "inputs": tokens[:, :-1],
        "targets": tokens[:, 1:],
        "weights": np.ones((batch, length), np.float32),
    }
    optimizer = AdamW(schedule=Constant(learning_rate=1e-3))
    program = TrainProgram(model, optimizer, train, make_mesh(MeshConfig()))
    compiled = program.lower(batch, {"inputs": length}).compile()
    state = program.state_shapes
    facts = {
        "resident_megabytes_before": round(before / 1024),
        "parameter_megabytes": total_bytes(state.params) / 1e6,
        "optimizer_megabytes": total_bytes(state.opt_state) / 1e6,
        "temporary_megabytes": compiled.memory_analysis().temp_size_in_bytes / 1e6,
        "learning_parameters": sum(state.params[name].size for name in program.trained),
    }
    return training_step(model, train, arrays, 1e-3), facts
