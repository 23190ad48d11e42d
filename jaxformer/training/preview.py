"""A short text from the model in training: enough to see what it has learned."""

from typing import Any

import numpy as np

from jaxformer.data import Tokenizer
from jaxformer.generation.batch import batch_of_rows
from jaxformer.generation.continuation import continuations
from jaxformer.generation.generator import Generator, row_keys
from jaxformer.generation.options import Decoding
from jaxformer.training.step import TrainProgram


def sample_text(
    program: TrainProgram,
    params: Any,
    tokenizer: Tokenizer,
    *,
    prompt: str,
    length: int,
    window: int,
    temperature: float,
    seed: int,
) -> str:
    """Continues a prompt.

    Args:
        program: The training program, which knows the model and the mesh.
        params: Its parameters.
        tokenizer: Turns text into tokens and back.
        prompt: The start of the text; empty for the start of a document.
        length: Tokens to add.
        window: T, the tokens the model looks at, at most; the prompt and the text must fit.
        temperature: 0 for the most likely token each time.
        seed: Of the random choices.

    Returns:
        The prompt and its continuation up to the end of the text.
    """
    start = np.concatenate([[tokenizer.end_of_text_id], tokenizer.encode(prompt)])[:window]
    if not (room := min(length, window - len(start))):
        return tokenizer.decode(start[1:])
    # Every replica writes the same text: a batch has a row for each of them.
    rows = program.mesh.shape["data"] * program.mesh.shape["fsdp"]
    asked = {"max_new_tokens": room, "eos_token_id": tokenizer.end_of_text_id}
    found = continuations(
        Generator(program.model, program.template, params, mesh=program.mesh),
        batch_of_rows([start] * rows),
        Decoding.of({}, asked | {"temperature": temperature}),
        row_keys(seed, np.zeros(rows, int)),
    )
    written = found.tokens[0, : found.lengths[0]]
    return tokenizer.decode(
        np.concatenate([start, written[written != tokenizer.end_of_text_id]])[1:]
    )
