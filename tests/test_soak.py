"""The short version of `make soak`: a handful of each attack, and that what is wrong is seen."""

import json
import signal
import subprocess
import sys

import numpy as np
import pytest
from refusals import Row
from soak import damage, runs
from soak.__main__ import table
from soak.calls import Calls, compared
from soak.commands import Commands
from soak.configs import Configs, mistyped
from soak.damage import Damage
from soak.folders import Folders
from soak.hostile import spoiled_bytes, spoiled_json
from soak.jobs import INTERVAL, STOPPED, Jobs, stop_complaint
from soak.places import Places
from soak.processes import Process, complaint_of
from soak.trial import Outcome, Reached, Refused, Silent, Trial, chance, judge
from tiny_run import ROOT

from jaxformer.config import load_config
from jaxformer.errors import ConfigError, DataError

pytestmark = pytest.mark.more


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("soak")


def outcomes(attacker, count):
    """What came of trials, each with what says how to repeat it."""
    trials = [attacker.trial(index) for index in range(count)]
    return [(f"{trial.part}:{trial.index}", trial) for trial in trials if trial.outcome.failed]


# A handful of each ------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [(2, signal.SIGKILL, "s3"), (2, signal.SIGTERM, "s3"), (4, signal.SIGKILL, "disk")],
    ids=lambda kind: "-".join(map(str, kind)),
)
def test_jobs(tmp_path, kind):
    """The last one also ends with fewer processes."""
    assert outcomes(Jobs(tmp_path / "jobs", 0, (kind,)), 1) == []


@pytest.mark.parametrize(
    ("kind", "count", "options"),
    [
        (Damage, 12, (("text",),)),
        (Places, 8, ()),
        pytest.param(Folders, 20, (("gpt2",),), marks=pytest.mark.torch),
        (Configs, 200, ()),
        (Commands, 20, ()),
        (Calls, 30, ()),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
@pytest.mark.quick("Configs-*")
def test_nothing_fails_in_a_handful_of_each(kind, count, options, folder):
    assert outcomes(kind(folder / kind.__name__, 0, *options), count) == []


# The judges -------------------------------------------------------------------------------------


def raising(error):
    def action():
        raise error

    return action


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (ConfigError("model.x = 1: must be 2"), Outcome.REFUSED),
        (DataError("rows.tsv:3: no label"), Outcome.REFUSED),
        (Refused("error: --step 3: no such checkpoint"), Outcome.REFUSED),
        (SystemExit(2), Outcome.REFUSED),
        (SystemExit(0), Outcome.SURVIVED),
        (Reached("TrainProgram"), Outcome.SURVIVED),
        (Silent("another loss"), Outcome.SILENT),
        (TypeError("softcap = None: must be a number"), Outcome.REFUSED),
        (TypeError("unsupported operand"), Outcome.TRACEBACK),
        (KeyError("model"), Outcome.TRACEBACK),
        (DataError(""), Outcome.TRACEBACK),
        (DataError("a\n" * 100), Outcome.TRACEBACK),
    ],
)
def test_what_counts_as_a_refusal(error, outcome):
    assert judge(raising(error), ("softcap",))[0] is outcome
    assert judge(lambda: None)[0] is Outcome.SURVIVED


def test_an_attack_that_does_not_end():
    def forever():
        while True:
            pass

    assert judge(forever, seconds=1) == (Outcome.TRACEBACK, "no end after 1 s")


def said_by(folder, code):
    """A process that runs some Python, as one of a job."""
    said = folder / "said.txt"
    with said.open("w") as file:
        popen = subprocess.Popen([sys.executable, "-c", code], stdout=file, stderr=file)
    return Process(popen, said)


@pytest.mark.parametrize(
    ("code", "complaint"),
    [
        ("print('error: another process has ended'); raise SystemExit(1)", ""),
        ("print('step 3')", ""),
        ("raise SystemExit(1)", "0 sentences, status 1"),
        ("print('error: a'); print('error: b'); raise SystemExit(2)", "2 sentences, status 2"),
        ("print('error: a'); 1 / 0", "status 1"),
        ("print('F0101 12:00 client.cc] lost'); raise SystemExit(1)", "status 1"),
        ("import os; os.kill(os.getpid(), 6)", "status -6"),
        ("import time; time.sleep(600)", "still runs after 1 s"),
    ],
)
def test_what_counts_as_a_sentence_of_a_process_that_lost_another(tmp_path, code, complaint):
    found = complaint_of(said_by(tmp_path, code), 20 if "sleep" not in code else 1)
    assert complaint in found
    assert bool(found) == bool(complaint)


def test_a_process_that_was_killed_need_not_say_anything(tmp_path):
    killed = said_by(tmp_path, "import os; os.kill(os.getpid(), 9)")
    assert complaint_of(killed, 20, was_killed=True) == ""
    cries = said_by(tmp_path, "1 / 0")
    assert "status 1" in complaint_of(cries, 20, was_killed=True)


@pytest.mark.parametrize(
    ("statuses", "words", "made", "right"),
    [
        ({STOPPED}, "stopped after step 7; rerun", [5, 7], True),
        ({STOPPED}, "stopped after step 10; rerun", [10], True),
        ({STOPPED}, "stopped after step 7; rerun", [5], False),  # not saved
        ({STOPPED}, "stopped after step 7; rerun", [6, 7], False),  # saved twice
        ({STOPPED}, "", [7], False),  # without a word
        ({0}, "", [5, 10], True),  # told after the last step
        ({0, STOPPED}, "stopped after step 7; rerun", [7], False),  # not agreed
        ({-signal.SIGTERM, 2}, "", [], True),  # told before it had met the others
        ({-signal.SIGTERM, 1}, "", [5], False),
        ({1}, "", [5], False),
    ],
)
def test_how_a_job_may_stop(statuses, words, made, right):
    assert INTERVAL == 5
    assert (stop_complaint(statuses, words, made) == "") is right


def test_a_trial_depends_on_its_index_alone():
    text = json.loads(json.dumps({"a": [1, 2], "b": {"c": "d"}}))
    for spoil, whole in ((spoiled_bytes, bytes(range(99))), (spoiled_json, text)):
        one, again, other = (repr(spoil(whole, chance(3, "x", n))) for n in (5, 5, 6))
        assert one == again
        assert one != other
    assert text == {"a": [1, 2], "b": {"c": "d"}}


@pytest.mark.slow
def test_other_parameters_are_silent(folder):
    """The numbers of a run are changed as an undetected flip would change them."""
    whole = runs.whole_run(folder, "text")
    damage.inspected(whole, whole.folder)
    damage.loaded(whole, whole.folder)
    older = runs.Whole(whole.experiment, whole.folder, {"x": 4}, {"x": 4}, [])
    for way in (damage.inspected, damage.loaded):
        assert judge(lambda way=way: way(older, whole.folder))[0] is Outcome.SILENT
    damage.continued(whole, whole.copy(folder / "continued"))


def test_a_wrong_argument_that_is_accepted_is_silent():
    row = Row(lambda x: x * 2, {"x": np.ones(2)})
    right = np.full(2, 2.0)
    for verdict, value, silent in (
        ("wrong", np.zeros(2), True),
        ("same", np.ones(2), False),
        ("same", np.zeros(2), True),
        ("any", np.zeros(3), False),
        ("any", np.full(2, np.nan), True),
    ):
        outcome, _ = judge(
            lambda verdict=verdict, value=value: compared(row, "x", verdict, value, right)
        )
        assert outcome is (Outcome.SILENT if silent else Outcome.SURVIVED)


def test_a_field_of_another_type_is_named():
    config = load_config(str(ROOT / "configs" / "tiny_decoder.py"))
    assert mistyped(config, "config") == ""
    object.__setattr__(config.model, "num_layers", "2")
    assert "config.model.num_layers = '2'" in mistyped(config, "config")


def test_the_table():
    trials = [
        Trial("kills", 0, "", Outcome.SURVIVED, "", 5),
        Trial("damage", 0, "", Outcome.REFUSED),
        Trial("damage", 1, "", Outcome.SILENT),
    ]
    assert table(trials).splitlines() == [
        "| attack | tried | survived | refused in one sentence | silent | traceback |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
        "| times that a training process was killed | 5 | 5 | 0 | 0 | 0 |",
        "| damaged runs | 2 | 0 | 1 | 1 | 0 |",
    ]
