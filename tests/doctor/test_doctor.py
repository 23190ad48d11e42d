"""The doctor: known-bad computations, what a variable does, and how a wrong result is shown."""

import dataclasses
from importlib.metadata import version

import jax
import numpy as np
import pytest

from jaxformer import xla_flags
from jaxformer.cli import doctor as cli_doctor
from jaxformer.cli import main as cli
from jaxformer.doctor import cases as doctor_cases
from jaxformer.doctor import report as doctor
from jaxformer.doctor.cases import CASES
from jaxformer.doctor.report import Finding, all_correct, check_variables, finding, run_cases

DANGEROUS = "sums in arrays of 7 axes"
BY_NAME = {case.name: case for case in CASES}


@pytest.mark.more
@pytest.mark.parametrize(
    "case", [case for case in CASES if case.in_transformers], ids=lambda case: case.name
)
def test_what_transformers_compute_is_right_here(case):
    assert case.error() <= case.tolerance


@pytest.mark.more
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_wrong_result_is_found(case):
    """Each truth is compared with everything that was computed, whatever its shape."""
    if case.name == DANGEROUS:
        pytest.skip("kills this process where it goes wrong")
    pairs = [(np.asarray(found, np.float64), truth) for found, truth in case.run()]
    for index in range(len(pairs)):
        spoiled = list(pairs)
        computed = pairs[index][0].copy()
        computed.flat[-1] += 1 + abs(computed.flat[-1])
        spoiled[index] = (computed, pairs[index][1])
        assert dataclasses.replace(case, run=lambda pairs=spoiled: pairs).error() > case.tolerance


def test_the_keys_of_packed_documents_were_misplaced_before_jax_0_12():
    wrong = BY_NAME["packed documents in cuDNN"].error() > 0
    # In 0.11.2 they are right, too.
    assert wrong or jax.__version_info__ >= (0, 11)
    assert not wrong or jax.__version_info__ < (0, 12)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_value_that_is_no_number_is_wrong(value):
    case = dataclasses.replace(CASES[0], run=lambda: [([1.0, value], [1.0, 2.0])])
    assert case.error() == np.inf


def test_only_what_transformers_compute_is_a_failure():
    wrong = {"error": 0.5}
    serious, other = BY_NAME["gradients of attention"], BY_NAME["sums over rows of 3"]
    assert finding(serious, {"error": 1e-7}).status == "PASS"
    assert finding(serious, wrong).status == "FAIL"
    assert finding(other, wrong).status == "note"
    assert not all_correct([finding(serious, wrong)])
    assert all_correct([finding(other, wrong), finding(serious, {"error": 0.0})])
    shown = finding(other, wrong)
    assert "relative error 5.0e-01" in shown.meaning
    assert shown.remedy == doctor_cases.NO_YNN_REDUCTIONS
    assert shown.issue.endswith("39103")


@pytest.mark.parametrize(
    ("environment", "name", "text"),
    [
        ({"JAX_ENABEL_X64": "1"}, "JAX_ENABEL_X64", "did you mean JAX_ENABLE_X64?"),
        ({"JAX_ENABLE_X64": "1"}, "JAX_ENABLE_X64=1", "64 bits"),
        ({"JAX_DISABLE_JIT": "true"}, "JAX_DISABLE_JIT=true", "nothing is compiled"),
        (
            {"XLA_FLAGS": "--xla_cpu_max_isa=AVX2 --xla_cpu_experimental_ynn_fusion_type="},
            "--xla_cpu_experimental_ynn_fusion_type=",
            doctor_cases.NO_YNN_REDUCTIONS,
        ),
        ({"XLA_FLAGS": "--xla_cpu_enable_fast_math"}, "--xla_cpu_enable_fast_math=true", "NaN"),
    ],
)
def test_a_variable_that_does_harm(environment, name, text):
    (found,) = check_variables(environment)
    assert (found.name, found.status) == (name, "note")
    assert text in f"{found.meaning}; {found.remedy}"


@pytest.mark.parametrize(
    "environment",
    [
        {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "8", "JAX_ENABLE_X64": "0"},
        {"JAX_COORDINATOR_ADDRESS": "host:1", "JAX_PROCESS_ID": "0", "PATH": "/bin"},
        {"XLA_FLAGS": doctor_cases.NO_YNN_REDUCTIONS.removeprefix("XLA_FLAGS=")},
        {"XLA_FLAGS": "--xla_cpu_enable_fast_math=false", "JAX_COMPILATION_CACHE_DIR": "x"},
    ],
)
def test_an_ordinary_environment_is_not_complained_of(environment):
    assert check_variables(environment) == []


def test_every_option_of_jax_is_known():
    assert (
        check_variables({name.upper(): "" for name in jax.config.values if name.startswith("jax")})
        == []
    )


AFFECTED = pytest.mark.skipif(version("jaxlib") != "0.10.2", reason="of jaxlib 0.10.2")
FUSED_SUMS = f"{xla_flags.YNN_FUSIONS}=individual_dot,individual_convolution,reduce"
"""What the compiler does without a flag."""


@AFFECTED
@pytest.mark.slow
def test_cases_that_die_do_not_stop_the_next(monkeypatch):
    """Each process goes on after the one that died; with the package's flag nothing is wrong."""
    monkeypatch.delenv("XLA_FLAGS")
    names = ("sums over rows of 3", DANGEROUS, "gradients through frozen blocks", "NaN is seen")
    chosen = [BY_NAME[name] for name in names]
    assert [item.status for item in run_cases(chosen)] == ["PASS"] * 4
    monkeypatch.setenv("XLA_FLAGS", FUSED_SUMS)
    found = list(run_cases(chosen))
    assert [item.name for item in found] == [case.name for case in chosen]
    assert [item.status for item in found] == ["note", "note", "FAIL", "PASS"]


def test_jax_that_cannot_start(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_no_such_flag=1")
    (found,) = run_cases()
    assert (found.name, found.status) == (doctor.STARTS, "FAIL")
    assert found.meaning == "Unknown flag in XLA_FLAGS: --xla_no_such_flag=1"


@pytest.mark.parametrize("status", ["PASS", "note", "FAIL"])
def test_the_command(monkeypatch, capsys, status):
    found = Finding("sums", status, "they are wrong", "set A=b", "https://example.org/1")
    monkeypatch.setattr(doctor, "run_cases", lambda: iter([found]))
    if status == "FAIL":
        with pytest.raises(SystemExit, match="1"):
            cli_doctor.doctor(cli_doctor.Doctor())
    else:
        assert cli.main(["doctor"]) == 0
    output = capsys.readouterr().out
    for text in ("jaxlib", "memory", "JAX_PLATFORMS", "cpu:0"):
        assert text in output
    assert ("What to do: set A=b" in output) == (status != "PASS")
    assert ("All computations that transformers use are correct" in output) == (status != "FAIL")
