"""Every objective with the family it is for: files, batches, steps, metrics, an exact restart."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import chex
import jax
import numpy as np
import pytest
from PIL import Image
from transfers import transfer

from jaxformer.checkpoints.checkpointer import Checkpointer
from jaxformer.checkpoints.restore import restore_newest
from jaxformer.config import Config, TrainConfig, validate
from jaxformer.config.experiment import check_heads, check_labels, check_vocabulary
from jaxformer.data import (
    Bytes,
    CausalLM,
    DataConfig,
    Denoising,
    JsonLines,
    MaskedLM,
    PrefixLM,
    SentencePairs,
    SpanCorruption,
    TrainTokenizer,
)
from jaxformer.data.tasks import (
    ColumnFile,
    HorizontalFlip,
    ImageFolder,
    Images,
    LabelledText,
    Mixup,
    Number,
    ParallelText,
    SpanText,
    TaggedText,
)
from jaxformer.distributed import make_mesh
from jaxformer.functional import (
    LayerNorm,
    Learned,
    Sinusoidal,
    Sinusoidal2D,
    T5Bias,
    resize_positions,
)
from jaxformer.models import (
    Classification,
    DecoderConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    MaskedLanguageModel,
    Regression,
    Span,
    TokenClassification,
    VisionConfig,
)
from jaxformer.nn import MLP, DotProductAttention, PostNorm, TokenEmbeddings, VocabularyLogits
from jaxformer.optim import AdamW, Constant
from jaxformer.training.evaluation.evaluate import Evaluator
from jaxformer.training.loop import train
from jaxformer.training.step import TrainProgram

LENGTH, ROWS, VOCAB = 32, 8, 512
WORDS = ("the", "a", "dog", "cat", "sat", "ran", "under", "over", "mat", "tree", "red", "old")


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    """A small file, or folder, for every kind of data."""
    folder, random = tmp_path_factory.mktemp("files"), np.random.default_rng(0)

    def sentence(words=6):
        return " ".join(random.choice(WORDS, words)) + "."

    def write(name, lines):
        (folder / name).write_text("\n".join(lines) + "\n")

    write(
        "texts.jsonl", (json.dumps({"text": " ".join(map(sentence, [6] * 20))}) for _ in "x" * 30)
    )
    rows = [(sentence(), sentence(4), random.choice(["no", "so", "yes"])) for _ in range(60)]
    write("labels.tsv", ["first\tsecond\tlabel", *("\t".join(row) for row in rows)])
    numbers = (f"{first}\t{second}\t{len(first) / 7:.2f}" for first, second, _ in rows)
    write("numbers.tsv", ["first\tsecond\tlabel", *numbers])
    tags = ("\n".join(f"{w}\t{'ab'[w in 'dogcat']}" for w in sentence().split()) for _ in rows)
    write("tags.txt", (f"{text}\n" for text in tags))
    write("source.txt", (first for first, _, _ in rows))
    write("target.txt", (" ".join(reversed(first.split())) for first, _, _ in rows))
    write("questions.jsonl", (json.dumps(question_about(first)) for first, _, _ in rows))
    for label, colour in {"dark": 60, "light": 190}.items():
        (folder / "images" / label).mkdir(parents=True)
        for number in range(20):
            pixels = random.integers(colour - 60, colour + 60, (8, 12, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(folder / "images" / label / f"{number}.png")
    return folder


def question_about(context: str) -> dict:
    answer = context.split()[2]
    answers = [{"text": answer, "answer_start": context.index(answer)}]
    return {"question": "which one", "context": context, "answers": answers}


# Models -------------------------------------------------------------------------------------------

STACK = {
    "num_layers": 1,
    "model_dim": 16,
    "num_heads": 2,
    "mlp_dim": 16,
    "compute_dtype": "float32",
    "attention": "reference",
}
TEXT = STACK | {"vocab_size": VOCAB}
T5 = EncoderDecoderConfig(
    **TEXT,
    position=T5Bias(8, 16, bidirectional=True),
    decoder_position=T5Bias(8, 16, bidirectional=False),
    self_attention=DotProductAttention(scale=1.0),
    tie_embeddings=False,
)
BART = EncoderDecoderConfig(
    **TEXT,
    position=Learned(LENGTH, offset=2),
    decoder_position=Learned(LENGTH, offset=2),
    norm=LayerNorm(),
    residual=PostNorm(),
    embeddings=TokenEmbeddings(norm=LayerNorm()),
    feed_forward=MLP(gated=False),
    logits=VocabularyLogits(bias=True),
)


PAIRS = TokenEmbeddings(norm=LayerNorm(eps=1e-12), token_types=2)


def encoder(*heads, **changes) -> EncoderConfig:
    fields = {"position": Learned(LENGTH), "embeddings": PAIRS, "dropout": 0.0}
    fields |= {"self_attention": DotProductAttention(bias=True, output_bias=True)}
    return EncoderConfig(**TEXT | fields | changes, heads=heads)


# Cases --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """An objective, a model for it, and the metrics that it is judged by."""

    model: DecoderConfig | EncoderConfig | EncoderDecoderConfig | VisionConfig
    data: Callable[[Path], object]
    metrics: set[str]


def stream(objective, tokenizer=None) -> Callable[[Path], DataConfig]:
    """Data without labels."""
    return lambda files: DataConfig(
        source=JsonLines(str(files / "texts.jsonl")),
        tokenizer=tokenizer or Bytes(),
        objective=objective,
        sequence_length=LENGTH,
        batch_size=ROWS,
        validation_fraction=0.2,
        max_validation_batches=2,
    )


def labelled(kind, files_of, **fields):
    """Data with labels, and the fields that hold a file's name."""
    return lambda files: kind(
        **{name: str(files / file) for name, file in files_of.items()},
        **fields,
        batch_size=ROWS,
        validation_fraction=0.3,
    )


TOKENS = {"tokenizer": Bytes(), "sequence_length": LENGTH, "truncate": True}
BPE = TrainTokenizer(kind="bpe", vocab_size=VOCAB)
MASKED = encoder(MaskedLanguageModel())
PERPLEXITY, CHOICE = {"perplexity", "accuracy"}, {"accuracy", "matthews"}
PAIR = ("first", "second")


def of(name: str) -> set[str]:
    masked = {f"masked_language_model_{metric}" for metric in PERPLEXITY}
    return masked | {f"{name}_{metric}" for metric in (*CHOICE, "f1")}


CASES = {
    "causal": Case(DecoderConfig(**TEXT), stream(CausalLM()), PERPLEXITY | {"bits_per_byte"}),
    "prefix": Case(DecoderConfig(**TEXT), stream(PrefixLM()), PERPLEXITY),
    "masked tokens": Case(MASKED, stream(MaskedLM()), PERPLEXITY),
    "masked words": Case(MASKED, stream(MaskedLM(whole_word=True), BPE), PERPLEXITY),
    "masked spans": Case(MASKED, stream(MaskedLM(max_span=4)), PERPLEXITY),
    "next sentence": Case(
        encoder(MaskedLanguageModel(), Classification(label="next_sentence"), pooler="tanh"),
        stream(SentencePairs("next_sentence")),
        of("next_sentence"),
    ),
    "sentence order": Case(
        encoder(
            MaskedLanguageModel(),
            Classification(label="sentence_order"),
            num_layers=2,
            layer_repeats=2,
            embeddings=replace(PAIRS, dim=8),
        ),
        stream(SentencePairs("sentence_order")),
        of("sentence_order"),
    ),
    "span corruption": Case(T5, stream(SpanCorruption(), BPE), PERPLEXITY),
    "span corruption of bytes": Case(T5, stream(SpanCorruption(mean_span=8.0)), PERPLEXITY),
    "denoising": Case(BART, stream(Denoising()), PERPLEXITY),
    "translation": Case(
        replace(BART, position=Sinusoidal(), decoder_position=Sinusoidal()),
        labelled(
            ParallelText,
            {"source": "source.txt", "target": "target.txt"},
            tokenizer=Bytes(),
            source_length=48,
            target_length=40,
        ),
        PERPLEXITY,
    ),
    "classification": Case(
        encoder(Classification(num_labels=3), pooler="tanh"),
        labelled(
            LabelledText,
            {"train": "labels.tsv"},
            text=("first",),
            tokenizer=TrainTokenizer(kind="wordpiece", vocab_size=VOCAB),
            sequence_length=LENGTH,
        ),
        CHOICE | {"macro_f1"},
    ),
    "regression of pairs": Case(
        encoder(Regression()),
        labelled(LabelledText, {"train": "numbers.tsv"}, **TOKENS, text=PAIR, labels=Number()),
        {"squared_error", "pearson", "spearman"},
    ),
    "classification by a decoder": Case(
        DecoderConfig(**TEXT, heads=(Classification(num_labels=3, pooling="last"),)),
        labelled(LabelledText, {"train": "labels.tsv"}, **TOKENS, text=PAIR),
        CHOICE | {"macro_f1"},
    ),
    "tagging": Case(
        encoder(TokenClassification(num_labels=2)),
        lambda files: TaggedText(
            train=ColumnFile(str(files / "tags.txt")),
            **TOKENS,
            batch_size=ROWS,
            validation_fraction=0.3,
        ),
        {"accuracy", "macro_f1"},
    ),
    "questions": Case(
        encoder(Span(), position=Learned(72)),
        labelled(
            SpanText,
            {"train": "questions.jsonl"},
            tokenizer=Bytes(),
            sequence_length=72,
            question_length=16,
            stride=40,
        ),
        {"exact_match", "f1"},
    ),
    "images": Case(
        VisionConfig(
            **STACK,
            image_size=(8, 12),
            patch_size=(4, 3),
            position=Sinusoidal2D((2, 4)),
            heads=(Classification(num_labels=2, pooling="mean"),),
        ),
        lambda files: Images(
            source=ImageFolder(str(files / "images")),
            image_size=(8, 12),
            channels=3,
            augmentation=(HorizontalFlip(), Mixup()),
            batch_size=ROWS,
            validation_fraction=0.3,
        ),
        CHOICE | {"f1"},
    ),
}


def config_of(case: Case, files: Path) -> Config:
    return Config(
        case.model,
        case.data(files),
        AdamW(schedule=Constant(learning_rate=0.01, warmup_steps=0), weight_decay=0.0),
        TrainConfig(steps=20),
    )


@pytest.mark.parametrize("name", CASES)
@pytest.mark.first("causal")
@pytest.mark.quick("causal", "masked words")
def test_an_objective_from_files_to_metrics(name, files, tmp_path):
    case = CASES[name]
    config = config_of(case, files)
    validate(config, num_devices=1)
    data, again = (config.data.prepare(tmp_path / run) for run in ("run", "again"))
    if data.tokenizer is not None:
        check_vocabulary(config.model.vocab_size, data.tokenizer.vocab_size)
    check_labels(config.model.heads, data.labels)
    check_heads(config.model.heads, data.train.examples.blank())
    assert_order_is_a_function_of_seed_and_step(config, data, again, tmp_path)

    program = TrainProgram(config.model, config.optimizer, config.train, make_mesh(config.mesh))
    state = program.init(0)
    before = jax.device_get(state.params)
    first, losses = jax.device_put(data.train.batch(0), program.batch_sharding), []
    for _ in range(5):
        state, metrics = program.train_step(state, first)
        losses.append(float(metrics["loss"]))
    assert np.isfinite(losses).all()
    assert losses[-1] < losses[0]
    for head in config.model.heads:
        own = [n for n in before if n.startswith(f"heads.{head.name}.")]
        own = own or ["embedding.table"]  # a head that is tied and has no bias
        for parameter in own:
            assert np.abs(state.params[parameter] - before[parameter]).max() > 1e-3, parameter

    evaluator = Evaluator(program, data, config.data.max_validation_batches)
    measured = evaluator.evaluate(state.best_params)
    assert {"loss", *case.metrics} <= measured.keys()
    assert all(np.isfinite(value) for value in measured.values())
    assert_a_restart_is_exact(config, program, state, data, again, tmp_path / "checkpoints")


def assert_order_is_a_function_of_seed_and_step(config, data, again, folder):
    batches = [data.train.batch(step) for step in range(3)]
    chex.assert_trees_all_equal([again.train.batch(step) for step in range(3)], batches)
    chex.assert_trees_all_equal(next(again.train.iterate(start_step=2)), batches[2])
    names = [name for name in batches[0] if name in ("inputs", "images")]
    for name in names:
        assert (batches[0][name] != batches[1][name]).any()
    other = replace(config.data, seed=1).prepare(folder / "run")
    assert any((other.train.batch(0)[name] != batches[0][name]).any() for name in names)
    chex.assert_trees_all_equal(*(list(each.validation.epoch()) for each in (data, again)))


def assert_a_restart_is_exact(config, program, state, data, again, folder):
    """Two steps from a checkpoint, with data that were prepared anew, give the same bits."""
    checkpoints = Checkpointer(folder, {}, keep=1)
    step = int(state.step)
    checkpoints.save(step, state)
    checkpoints.close()
    restored_step, restored = restore_newest(folder, program.state_shapes)
    assert restored_step == step
    ends = []
    for start, side in ((state, data.train), (restored, again.train)):
        reached = start
        for batch in side.iterate(start_step=step, stop_step=step + 2):
            placed = jax.device_put(batch, program.batch_sharding)
            reached, _ = program.train_step(reached, placed)
        ends.append(reached)
    chex.assert_trees_all_equal(*ends)


# Images of another size ---------------------------------------------------------------------------


def vision_run(files, size) -> Config:
    position = Learned(1 + size[0] // 4 * (size[1] // 3))
    model = replace(CASES["images"].model, image_size=size, position=position)
    data = replace(CASES["images"].data(files), image_size=size)
    case = Case(model, lambda _: data, set())
    steps = TrainConfig(steps=2, eval_interval=2, checkpoint_interval=2)
    return replace(config_of(case, files), train=steps)


def logits_of(program, params, batch):
    with jax.set_mesh(program.mesh):
        scores = jax.jit(lambda params, batch: program.abstract_model.module(params).scores(batch))
        return scores(params, jax.device_put(batch, program.batch_sharding))["label"]


@pytest.mark.slow
def test_a_run_starts_from_one_on_images_of_another_size(files, tmp_path, capsys):
    source = vision_run(files, (8, 12))
    train(source, tmp_path / "small")
    large = replace(vision_run(files, (16, 9)), init_from=str(tmp_path / "small"))
    train(large, tmp_path / "large")
    assert "  resized: transformer.inputs.position_table\n" in capsys.readouterr().out

    programs = [
        TrainProgram(c.model, c.optimizer, c.train, make_mesh(c.mesh)) for c in (source, large)
    ]
    saved = restore_newest(tmp_path / "small" / "checkpoints", programs[0].state_shapes)[1].params
    same, report = transfer(programs[0].init(1).params, tmp_path / "small", source.model)
    assert not report.resized
    batch = source.data.prepare(tmp_path / "small").train.batch(0)
    np.testing.assert_array_equal(
        logits_of(programs[0], same, batch), logits_of(programs[0], saved, batch)
    )
    table, program = "transformer.inputs.position_table", programs[1]
    resized, report = transfer(program.init(1).params, tmp_path / "small", large.model)
    assert report.resized == (table,)
    assert set(report.taken) == set(saved)
    saved[table] = resize_positions(saved[table], (2, 4), (4, 3), prefix=1)
    chex.assert_trees_all_equal(resized, saved)
    batch = large.data.prepare(tmp_path / "large").train.batch(0)
    assert np.isfinite(logits_of(program, resized, batch)).all()
