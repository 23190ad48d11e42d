"""Texts that wait for a batch; what a server does with them: tests/cli/test_serve.py."""

import pytest
from tiny_models import random_parameters

from jaxformer.checkpoints.run_dir import prepared_data
from jaxformer.checkpoints.saved_run import write_run
from jaxformer.config import Config
from jaxformer.data import Bytes, DataConfig, TextFiles
from jaxformer.generation.config import GenerationConfig
from jaxformer.models import DecoderConfig
from jaxformer.pretrained.auto import load
from jaxformer.server.batches import Batcher, Busy, TextRequest


def test_only_so_many_texts_wait(tmp_path):
    (tmp_path / "a.txt").write_text("The dog chased a dog. " * 40)
    model = DecoderConfig(vocab_size=320, num_layers=1, model_dim=16, num_heads=2, mlp_dim=16)
    data = DataConfig(
        source=TextFiles(str(tmp_path / "*.txt")), tokenizer=Bytes(), sequence_length=32
    )
    write_run(tmp_path / "run", Config(model, data), 3, random_parameters(model, scale=0.3))
    prepared_data(data, tmp_path / "run")
    request = TextRequest([5, 6], GenerationConfig(), deliver=lambda piece: None, deadline=0.0)
    request.cancelled = True  # so that the thread takes it without computing anything
    batcher = Batcher(load(tmp_path / "run"), batch_size=2, most_waiting=2)
    try:
        with pytest.raises(Busy):
            batcher.submit([request] * 3)
        batcher.submit([request] * 2)
    finally:
        batcher.close()
