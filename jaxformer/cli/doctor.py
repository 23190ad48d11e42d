"""``jaxformer doctor``: checks whether this machine computes correctly."""

import os
import sys
from dataclasses import dataclass

from jaxformer.doctor import report
from jaxformer.io.console import console, plain_table
from jaxformer.training.logging.report import print_table


@dataclass(frozen=True)
class Doctor:
    """Checks that this machine and its jaxlib compute correctly.

    Shows versions, devices, memory and environment variables, and compares computations that some
    releases of jaxlib get wrong with float64. Takes about twenty seconds.

    FAIL: a computation that transformers use is wrong here. The exit status is 1.

    note: something is wrong but not known to affect transformers, or may be intentional. The exit
    status is 0.
    """


def doctor(_: Doctor) -> None:
    """Prints the findings; exits with status 1 if something is wrong."""
    print_table("This machine:", report.machine())
    variables = report.variables(os.environ)
    print_table("Environment variables of JAX:", list(variables.items()) or [("none", "")])
    results = list(report.run_cases())
    # Started last, since some accelerators serve only one process at a time.
    if results[0].name != report.STARTS:
        print_table("Devices:", report.devices())
    findings = [*report.check_variables(os.environ), *results]
    rows = [(finding.name, finding.status) for finding in findings]
    console().print(plain_table(rows=rows, show_header=False), markup=False)
    for finding in findings:
        if finding.status != "PASS":
            print(f"\n{finding.status}: {finding.name}\n  {finding.meaning}")
            print(f"  What to do: {finding.remedy}")
            if finding.issue:
                print(f"  Reported: {finding.issue}")
    if not report.all_correct(findings):
        sys.exit(1)
    print("\nAll computations that transformers use are correct.")
