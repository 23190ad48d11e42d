"""Train short, test long: positional schemes at multiples of their training length."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import product
from pathlib import Path
from typing import Any

from jaxformer.checks import at_least, check_fields
from jaxformer.config import Config, TrainConfig, load_config
from jaxformer.config.shipped import config_spec
from jaxformer.data import CorpusOptions, TokenizerFile
from jaxformer.data.tasks.algorithmic import RULES, VOCAB_SIZE, Algorithmic
from jaxformer.errors import ArgumentError
from jaxformer.lab.studies.lengths import measure, validation_text
from jaxformer.lab.studies.schemes import SCHEMES, chosen, models
from jaxformer.lab.studies.study import Cell
from jaxformer.models import DecoderConfig
from jaxformer.nn import TokenEmbeddings
from jaxformer.optim import Cosine, Muon

TEXT = "text"
TASKS = (TEXT, *RULES)
"""Text, and the algorithmic tasks."""


@dataclass(frozen=True)
class Extrapolation:
    """Trains small decoders at one length and tests them at longer ones.

    Every positional scheme is trained on text and on algorithmic tasks, with several seeds. The
    output folder contains a page (index.html), its tables (report.md), figures, and all numbers
    (results.csv, results.json). The default takes about an hour on two cores. Rerun the same
    command to continue an interrupted study.
    """

    out: Path = Path("runs/lab-extrapolate")
    """The output folder."""
    schemes: str = "all"
    """Comma-separated schemes: none,integer,binary,sinusoidal,learned,t5,alibi,rope,
    rope-linear,rope-yarn. The last two stretch the frequencies of a trained RoPE at test time.
    """
    tasks: str = "all"
    """Comma-separated tasks: text,copy,reverse,parity,addition,sorting, missing_duplicate."""
    seeds: int = 3
    """Number of models per scheme and task."""
    steps: int = 250
    """Updates of a text model."""
    task_steps: int = 600
    """Updates of a model for an algorithmic task."""
    text_length: int = 128
    """Tokens per training row of text."""
    task_length: int = 16
    """Maximum number of symbols of a task's training input."""
    factors: str = "1,2,4,8,16"
    """Comma-separated test lengths, as multiples of the training length."""
    keep_runs: bool = False
    """Keep every run's folder with its checkpoint, which takes gigabytes."""

    def __post_init__(self):
        shortest = max(rule.shortest for rule in RULES.values())
        counts = ("seeds", "steps", "task_steps")
        sizes = {"text_length": at_least(4), "task_length": at_least(shortest)}
        _ = self.chosen_schemes, self.chosen_tasks, self.multiples  # checked before anything runs
        check_fields(self, "lab", **dict.fromkeys(counts, at_least(1)), **sizes)

    @cached_property
    def chosen_schemes(self) -> tuple[str, ...]:
        """The schemes that are tested."""
        return chosen(self.schemes, SCHEMES, "--schemes")

    @cached_property
    def chosen_tasks(self) -> tuple[str, ...]:
        """Text, or the algorithmic tasks, or both."""
        return chosen(self.tasks, TASKS, "--tasks")

    @cached_property
    def multiples(self) -> tuple[int, ...]:
        """The test lengths as multiples of the training length, in increasing order."""
        return _factors(self.factors)

    def prepare(self) -> None:
        """Prepares the text if the study includes the text task."""
        if TEXT in self.chosen_tasks:
            prepare_text(self.out)
            data = text_experiment(self.out).data
            longest = replace(data, sequence_length=self.text_length * max(self.multiples))
            validation_text(longest, self.out / TEXT, rows=1)

    def cells(self) -> list[Cell]:
        """Returns the runs of the study, seed by seed, so that a partial study is usable."""
        trained = models(self.chosen_schemes)
        rows = range(self.seeds), self.chosen_tasks, trained.items()
        return [self._cell(task, name, tests, seed) for seed, task, (name, tests) in product(*rows)]

    def _cell(self, task: str, scheme: str, tests: Sequence[str], seed: int) -> Cell:
        rows = 16 if task == TEXT else 128
        config = self._text(scheme, seed) if task == TEXT else self._task(task, scheme, seed)
        return Cell(
            name=f"{task}-{scheme}-seed{seed}",
            kind=TEXT if task == TEXT else "task",
            config=config,
            settings={"schemes": list(tests), "factors": list(self.multiples)},
            measure=partial(measure, self.multiples, rows, tests),
        )

    def _text(self, scheme: str, seed: int) -> Config:
        base = text_experiment(self.out)
        length = self.text_length
        model = replace(base.model, position=self._position(scheme, length))
        data = replace(
            base.data, sequence_length=length, batch_size=max(1, 2048 // length), seed=seed
        )
        return replace(base, model=model, data=data, train=short_training(self.steps, seed))

    def _task(self, task: str, scheme: str, seed: int) -> Config:
        data = Algorithmic(task=task, length=self.task_length, batch_size=32, seed=seed)
        return Config(
            model=DecoderConfig(
                vocab_size=VOCAB_SIZE,
                num_layers=2,
                model_dim=64,
                num_heads=4,
                mlp_dim=192,
                scan_layers=False,
                **unit_embeddings(64),
                position=self._position(scheme, data.lengths["inputs"]),
            ),
            data=data,
            optimizer=Muon(schedule=Cosine(learning_rate=3e-3, warmup_steps=50)),
            train=short_training(self.task_steps, seed),
        )

    def _position(self, scheme: str, length: int):
        return SCHEMES[scheme].trained(length, length * max(self.multiples))


def unit_embeddings(model_dim: int) -> dict[str, Any]:
    """Returns the fields of a model whose embeddings have unit variance (Vaswani et al., 2017).

    With smaller embeddings, added codes (in particular sinusoids) would dominate the tokens.
    """
    return {"embeddings": TokenEmbeddings(scale=model_dim**0.5), "init_std": model_dim**-0.5}


def text_experiment(folder: Path) -> Config:
    """Returns a narrower tiny decoder with the text that `prepare_text` prepared."""
    base = load_config(config_spec("tiny_decoder"))
    home = folder / TEXT
    return replace(
        base,
        model=replace(
            base.model,
            num_layers=3,
            model_dim=128,
            num_kv_heads=None,
            mlp_dim=336,
            **unit_embeddings(128),
        ),
        data=replace(
            base.data,
            tokenizer=TokenizerFile(str(home / "tokenizer")),
            corpus=CorpusOptions(cache_dir=str(home)),
        ),
    )


def prepare_text(folder: Path) -> None:
    """Trains the tokenizer and tokenizes the text once for all runs of a study."""
    load_config(config_spec("tiny_decoder")).data.prepare(folder / TEXT)


def short_training(steps: int, seed: int) -> TrainConfig:
    """Returns the training settings of a study, with one evaluation and checkpoint at the end."""
    return TrainConfig(
        steps=steps,
        seed=seed,
        eval_interval=steps,
        checkpoint_interval=steps,
        keep=1,
        loggers=(),
        sample_tokens=0,
    )


def _factors(text: str) -> tuple[int, ...]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words or not all(word.isdecimal() and int(word) for word in words):
        raise ArgumentError(
            f"--factors {text!r}: must be comma-separated integers of at least 1: 1,2,4"
        )
    return tuple(sorted({int(word) for word in words}))
