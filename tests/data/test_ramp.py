"""Ramps: no token is skipped or read twice, stages follow each other, mistakes are named."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxformer.config import Config
from jaxformer.config.overrides import parse
from jaxformer.data import (
    Bytes,
    CausalLM,
    DataConfig,
    Denoising,
    Joined,
    MaskedLM,
    Mixture,
    Packed,
    SentencePairs,
    SpanCorruption,
    Stage,
    TextFiles,
    TokenStream,
    linear_ramp,
)
from jaxformer.data.ramp import phase_at, same_start
from jaxformer.data.tasks import Algorithmic, ImageFolder, Images
from jaxformer.errors import ConfigError
from jaxformer.io.serialization import from_json, to_json

GROWING = (Stage(8, until_step=2, sequence_length=4), Stage(6, until_step=5, sequence_length=8))


def stream_of(lengths):
    """Documents of distinct tokens, so that every place of the stream can be identified."""
    ends = np.cumsum([0, *(length + 1 for length in lengths)])
    return TokenStream(np.arange(ends[-1] + 1), ends.astype(np.int64), 0)


def batches_of(data, streams):
    """The batches of training, without a corpus on disk."""
    return data._batches(streams, Bytes().fit([]))


def pairs(batch):
    """What is predicted of what, with how far into its segment it is where that is known."""
    counted = batch["weights"] > 0
    return list(zip(batch["inputs"][counted], batch["targets"][counted], strict=True))


@settings(max_examples=8)
@given(
    lengths=st.lists(st.integers(1, 90), min_size=2, max_size=12),
    stops=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    sizes=st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 5)),
    seed=st.integers(0, 2**30),
    packing=st.sampled_from([Joined(), Packed()]),
)
def test_every_step_reads_the_next_of_the_longest_rows(lengths, stops, sizes, seed, packing):
    first = Stage(4 * sizes[0], until_step=stops[0], sequence_length=4)
    second = Stage(2 * sizes[1], until_step=sum(stops), sequence_length=8)
    plain = DataConfig(packing=packing, sequence_length=16, batch_size=1, seed=seed)
    data = replace(plain, batch_size=sizes[2], ramp=(first, second))
    stream = stream_of(lengths)
    grown, whole = batches_of(data, [stream]), batches_of(plain, [stream])
    read = 0
    for step in range(sum(stops) + 3):
        count = sizes[(step >= stops[0]) + (step >= sum(stops))]
        assert grown.rows_before(step) == read
        expected = [pair for row in range(read, read + count) for pair in pairs(whole.batch(row))]
        assert sorted(pairs(grown.batch(step))) == sorted(expected)
        read += count


@pytest.mark.parametrize("packing", [Joined(), Packed()], ids=str)
def test_an_epoch_of_all_lengths_has_each_token_once(packing):
    data = DataConfig(packing=packing, sequence_length=16, batch_size=1, ramp=GROWING)
    stream = stream_of([30, 5, 41, 17, 2, 64, 9, 80, 1, 33])
    dataset, found, step = batches_of(data, [stream]), Counter(), 0
    while dataset.rows_before(step) < dataset.num_rows:
        batch = dataset.batch(step)
        assert batch["inputs"].shape == ((8, 4), (6, 8), (1, 16))[(step >= 2) + (step >= 5)]
        found.update(pairs(batch))
        step += 1
    assert found == Counter(zip(range(stream.num_targets), range(1, 10**6), strict=False))
    assert data.steps_for(dataset.num_rows) == step


def test_parts_of_joined_rows_are_the_stream_cut_shorter():
    ramp = (Stage(4, until_step=100, sequence_length=4),)
    data = DataConfig(sequence_length=16, batch_size=2, ramp=ramp)
    stream = stream_of([100])
    short = batches_of(DataConfig(sequence_length=4), [stream]).examples
    whole = batches_of(replace(data, ramp=()), [stream]).batch(0)["inputs"]
    parts = batches_of(data, [stream]).batch(0)["inputs"]
    np.testing.assert_array_equal(parts.reshape(-1), whole[0])
    (start,) = np.flatnonzero([short.read(i, None)["inputs"][0] == parts[0, 0] for i in range(25)])
    for number, part in enumerate(parts, start):
        np.testing.assert_array_equal(part, short.read(number, None)["inputs"])


def test_a_document_that_is_cut_becomes_segments_with_their_own_positions():
    ramp = (Stage(2, until_step=100, sequence_length=4),)
    data = DataConfig(packing=Packed(), sequence_length=8, batch_size=1, ramp=ramp)
    dataset = batches_of(data, [stream_of([1, 4])])  # tokens 0 and 1, 2 to 6; a place is left
    batch = dataset.batch(0)
    assert sorted(pairs(batch)) == [(n, n + 1) for n in range(7)]
    np.testing.assert_array_equal(batch["inputs"][:, :3], [[0, 1, 2], [4, 5, 6]])
    np.testing.assert_array_equal(batch["segments"], [[1, 1, 2, 2], [1, 1, 1, 0]])
    np.testing.assert_array_equal(batch["positions"], [[0, 1, 0, 1], [0, 1, 2, 0]])


ENCODER_DECODERS = [SpanCorruption(), Denoising(deletion=0.0, mask_ratio=0.0, mean_span=2)]


@pytest.mark.parametrize("objective", [MaskedLM(), *ENCODER_DECODERS], ids=lambda o: repr(o)[:12])
def test_objectives_with_special_tokens_predict_the_text_of_an_epoch_once(objective, tmp_path):
    text = "".join(map(chr, np.random.default_rng(0).integers(97, 123, 3000)))
    (tmp_path / "text.txt").write_text(text)
    data = DataConfig(
        source=TextFiles(str(tmp_path)),
        tokenizer=Bytes(),
        objective=objective,
        sequence_length=48,
        batch_size=2,
        ramp=(Stage(8, until_step=3, sequence_length=12), Stage(4, 7, sequence_length=24)),
        validation_fraction=0.1,
    )
    prepared = data.prepare(tmp_path / "run")
    dataset, tokenizer, found, step = prepared.train, prepared.tokenizer, Counter(), 0
    letters = {int(tokenizer.encode(chr(n))[0]) for n in range(97, 123)}
    while dataset.rows_before(step) < dataset.num_rows:
        batch, phase = dataset.batch(step), phase_at(dataset.phases, step)
        for name, length in phase.data.lengths.items():
            assert batch[name].shape == (phase.batch_size, length)
        seen = batch["targets"][batch.get("segments" if objective == MaskedLM() else "weights") > 0]
        if isinstance(objective, SpanCorruption):  # what stays in the text is not in the targets
            seen = np.concatenate([seen, batch["inputs"][batch["segments"] > 0]])
        found.update(token for token in seen.tolist() if token in letters)
        step += 1
    # The last batch may begin the next epoch.
    again = dataset.rows_before(step) - dataset.num_rows
    assert again < 2
    corpus = Counter(t for t in tokenizer.encode(text[:2700]).tolist() if t in letters)
    missing, extra = corpus - found, found - corpus
    assert not missing
    assert extra.total() <= again * 60


def test_a_mixture_keeps_its_shares_in_every_stage(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text(name * 4000)
    sources = tuple(TextFiles(str(tmp_path / f"{name}.txt")) for name in "ab")
    data = DataConfig(
        source=Mixture(sources=sources, weights=(3.0, 1.0)),
        tokenizer=Bytes(),
        sequence_length=16,
        batch_size=8,
        ramp=(Stage(16, until_step=4, sequence_length=4), Stage(8, 9, sequence_length=8)),
    )
    dataset = data.prepare(tmp_path / "run").train
    for step in range(12):
        inputs = dataset.batch(step)["inputs"]
        for row in inputs.reshape(-1, 16):  # the parts of a row are adjacent
            assert len({token for token in row.tolist() if token >= 3} & {ord("a"), ord("b")}) <= 1
    counts = [Counter(dataset.batch(s)["inputs"].reshape(-1).tolist()) for s in range(12)]
    (_, most), (_, least) = sum(counts, Counter()).most_common(2)
    # 4 steps of 4 of the longest rows, 5 of 4 and 3 of 8.
    assert dataset.examples.counts(dataset.rows_before(12)) == [45, 15]
    assert most / least == pytest.approx(3, abs=0.1)


@given(step=st.integers(0, 9), hosts=st.integers(1, 4))
@settings(max_examples=10)
def test_hosts_and_starts_read_what_one_process_would(step, hosts):
    data = DataConfig(sequence_length=16, batch_size=4, ramp=GROWING, prefetch_threads=1)
    dataset = batches_of(data, [stream_of([300])])
    whole = dataset.batch(step)["inputs"]
    shares = np.array_split(np.arange(len(whole)), hosts)
    parts = [dataset.batch(step, rows=rows)["inputs"] for rows in shares if len(rows)]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    first = next(dataset.iterate(step, stop_step=step + 1))["inputs"]
    np.testing.assert_array_equal(first, whole)


def test_random_choices_of_the_parts_of_a_row_differ_and_stay():
    text = DataConfig(tokenizer=Bytes(), objective=MaskedLM(), sequence_length=48, batch_size=2)
    data = replace(text, ramp=(Stage(8, until_step=4, sequence_length=12),))
    tokenizer = Bytes().fit([], special_tokens=MaskedLM.special_tokens)
    tokens = np.full(2001, 97)
    stream = TokenStream(tokens, np.array([0, 2000]), 0)
    one, other = (data._batches([stream], tokenizer).batch(1) for _ in range(2))
    np.testing.assert_array_equal(one["inputs"], other["inputs"])
    assert len({tuple(row) for row in one["weights"].tolist()}) > 1


# Stages -----------------------------------------------------------------------------------------


def starts(data):
    return [(phase.start, phase.stop, phase.batch_size) for phase in data.phases]


def test_without_a_ramp_there_is_one_phase():
    data = DataConfig(batch_size=3)
    (phase,) = data.phases
    assert phase == (3, data, "data", 0, None, 0, 1)
    assert [data.steps_for(rows) for rows in (0.5, 3, 3.1, 300)] == [1, 1, 2, 100]


def test_tokens_end_a_stage_at_the_nearest_step():
    data = DataConfig(sequence_length=8192, batch_size=2048)
    ramp = (
        Stage(1024, until_tokens=252_000_000, sequence_length=4096),
        Stage(1024, until_tokens=2_870_000_000_000),
    )
    # 252M tokens are 60.08 steps of 2^22; 2.87T less those of 60 are 342,100.66 of 2^23.
    assert starts(replace(data, ramp=ramp)) == [
        (0, 60, 1024),
        (60, 60 + 342_101, 1024),
        (342_161, None, 2048),
    ]


def test_a_linear_ramp_has_the_batch_sizes_of_megatron():
    start, increment, end, samples, length = 16, 16, 1536, 5_859_375, 2048
    ramp = linear_ramp(start, increment, end, tokens=samples * length)
    data = DataConfig(sequence_length=length, batch_size=end, ramp=ramp)
    assert len(ramp) == (end - start) // increment
    read = 0
    for phase in data.phases:
        # As many samples as are read for each increment decide the size there.
        each = samples / len(ramp)
        expected = min(end, start + int(read / each + 0.02) * increment)
        assert phase.batch_size == expected
        if phase.stop is not None:
            read += (phase.stop - phase.start) * phase.batch_size
    assert read == pytest.approx(samples, rel=2e-4)


def test_the_stages_are_part_of_the_saved_configuration():
    config = Config(data=DataConfig(sequence_length=16, ramp=GROWING))
    saved = to_json(config)
    assert from_json(saved, Config) == config
    del saved["data"]["ramp"]
    assert from_json(saved, Config).data.ramp == ()


def test_stages_on_the_command_line():
    words = "--ramp Stage Stage --ramp.0.batch-size 8 --ramp.0.until-step 2 "
    words += "--ramp.0.sequence-length 4 --ramp.1.batch-size 6 --ramp.1.until-tokens 500"
    default = DataConfig(sequence_length=16)
    found = parse(default, words.split(), "data").ramp
    assert found == (Stage(8, 2, sequence_length=4), Stage(6, until_tokens=500))
    grown = replace(default, ramp=found)
    assert parse(grown, ["--ramp.1.batch-size", "12"], "data").ramp[1].batch_size == 12
    assert parse(grown, ["--ramp"], "data").ramp == ()


@pytest.mark.parametrize(
    ("ramp", "message"),
    [
        ([Stage(4, 5), Stage(4, 5)], "data.ramp.1.until_step = 5"),
        ([Stage(4, 5), Stage(4, 3)], "data.ramp.1.until_step = 3"),
        ([Stage(4, 5), Stage(4, until_tokens=100)], "data.ramp.1.until_tokens = 100"),
        ([Stage(4, until_tokens=31)], "data.ramp.0.until_tokens = 31"),
        ([Stage(4, 2), Stage(4, 5, sequence_length=6)], "data.ramp.1.sequence_length = 6"),
        ([Stage(4, 2, sequence_length=32)], "data.ramp.0.sequence_length = 32"),
        (
            [Stage(4, 2, sequence_length=8), Stage(4, 5, sequence_length=4)],
            "data.ramp.1.sequence_length = 4",
        ),
        ([Stage(3, 2, sequence_length=8)], "data.ramp.0.batch_size = 3"),
    ],
)
def test_a_stage_that_cannot_be_is_named(ramp, message):
    if "31" in message:
        DataConfig(sequence_length=16, ramp=(Stage(4, until_tokens=32),))  # half a step is one
    with pytest.raises(ConfigError, match=message):
        DataConfig(sequence_length=16, ramp=tuple(ramp))


def test_a_length_that_an_objective_refuses_is_named():
    ramp = (Stage(24, 2, sequence_length=2),)
    with pytest.raises(ConfigError, match=r"data.ramp.0: data.sequence_length = 2"):
        DataConfig(objective=MaskedLM(), sequence_length=48, ramp=ramp)


@pytest.mark.parametrize(
    "make",
    [
        lambda ramp: DataConfig(objective=SentencePairs(), sequence_length=48, ramp=ramp),
        lambda ramp: Images(source=ImageFolder("pictures"), ramp=ramp),
        lambda ramp: Algorithmic(ramp=ramp),
    ],
    ids=["pairs", "images", "algorithmic"],
)
def test_other_rows_keep_their_length_and_may_grow_in_number(make):
    assert starts(make((Stage(4, until_step=2),)))[0] == (0, 2, 4)
    with pytest.raises(ConfigError, match=r"data.ramp.0.sequence_length = 8"):
        make((Stage(4, until_step=2, sequence_length=8),))


def test_images_are_not_counted_in_tokens():
    with pytest.raises(ConfigError, match=r"data.ramp.0.until_tokens = 9"):
        Images(source=ImageFolder("pictures"), ramp=(Stage(4, until_tokens=9),))


@pytest.mark.parametrize("wrong", [(16, 5, 32), (16, 16, 16), (0, 4, 16), (4, 0, 16)])
def test_increments_add_up(wrong):
    with pytest.raises(ConfigError, match=f"linear_ramp: start = {wrong[0]}"):
        linear_ramp(*wrong, tokens=10**6)


def test_a_length_that_a_checkpoint_decides_is_checked_later():
    data = DataConfig(sequence_length=None, ramp=(Stage(3, 2, sequence_length=8),))
    with pytest.raises(ConfigError, match=r"data.ramp.0.batch_size = 3"):
        replace(data, sequence_length=16)


@pytest.mark.parametrize(
    ("ramp", "batch_size", "steps", "same"),
    [
        (GROWING, 4, 10**6, True),
        (GROWING, 32, 5, True),
        (GROWING, 32, 6, False),
        ((GROWING[0], replace(GROWING[1], until_step=4)), 4, 4, True),
        ((GROWING[0], replace(GROWING[1], until_step=4)), 4, 5, False),
        ((GROWING[0], replace(GROWING[1], batch_size=2)), 4, 2, True),
        ((GROWING[0], replace(GROWING[1], batch_size=2)), 4, 3, False),
        ((*GROWING, Stage(32, until_step=9)), 4, 5, True),
        (GROWING[:1], 4, 1, False),  # the longest rows would have other tokens in masked LM
        ((replace(GROWING[0], until_step=None, until_tokens=64), GROWING[1]), 4, 9, True),
    ],
)
def test_what_is_read_stays_read_in_a_run_that_goes_on(ramp, batch_size, steps, same):
    old = DataConfig(objective=CausalLM(), sequence_length=16, batch_size=4, ramp=GROWING)
    assert same_start(old, replace(old, ramp=ramp, batch_size=batch_size), steps) == same
