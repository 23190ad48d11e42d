"""The `train` command on a tiny experiment that must not get as far as compilation."""

import pytest
from typed_commands import status_of

from jaxformer.training import loop

EXPERIMENT = """
from jaxformer.config import Config, TrainConfig
from jaxformer.data import Bytes, DataConfig, TextFiles
from jaxformer.models import DecoderConfig
from jaxformer.optim.optimizers import AdamW
from jaxformer.optim.schedules import Constant

def get_config(argument=None):
    return Config(
        model=DecoderConfig(vocab_size=264, num_layers=2, model_dim=32, num_heads=4, mlp_dim=64),
        data=DataConfig(
            source=TextFiles({corpus!r}), tokenizer=Bytes(), sequence_length=16, batch_size=8
        ),
        optimizer=AdamW(schedule=Constant(warmup_steps=2)),
        train=TrainConfig(steps=10),
    )
"""


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Starts the tiny experiment with options; returns the status and what was printed."""
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for number in range(4):
        (corpus / f"{number}.txt").write_text(f"The dog {number} chased another dog. " * 20)
    experiment = tmp_path / "tiny.py"
    experiment.write_text(EXPERIMENT.format(corpus=str(corpus)))

    def nothing_compiles(*_):
        raise AssertionError("got as far as the training program")

    monkeypatch.setattr(loop, "TrainProgram", nothing_compiles)

    def start(*options, name=str(experiment)):
        status = status_of("train", name, "--run-dir", tmp_path / "run", *options)
        output = capsys.readouterr()
        return status, output.out + output.err

    return start
