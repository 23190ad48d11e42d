"""Texts that wait for a batch; what a server does with them: tests/cli/test_serve.py."""

import pytest
from tiny_models import random_parameters
from tiny_run import tiny_config

from jaxformer.checkpoints.saved_run import write_run
from jaxformer.data import Bytes
from jaxformer.generation.config import GenerationConfig
from jaxformer.pretrained.auto import load
from jaxformer.server.batches import Batcher, Busy, TextRequest


def test_only_so_many_texts_wait(tmp_path):
    config = tiny_config()
    write_run(tmp_path / "run", config, 3, random_parameters(config.model))
    Bytes().fit([]).save(tmp_path / "run" / "tokenizer")
    request = TextRequest([5, 6], GenerationConfig(), deliver=lambda piece: None, deadline=0.0)
    request.cancelled = True  # so that the thread takes it without computing anything
    batcher = Batcher(load(tmp_path / "run"), batch_size=2, most_waiting=2)
    try:
        with pytest.raises(Busy):
            batcher.submit([request] * 3)
        batcher.submit([request] * 2)
    finally:
        batcher.close()
