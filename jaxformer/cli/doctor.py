"""``python -m jaxformer doctor``: whether this machine computes correctly, and what to set."""

import argparse
import os
import sys
from typing import Any

from rich.console import Console
from rich.table import Table

from jaxformer.doctor import report as doctor
from jaxformer.training.logging.report import print_table


def add_doctor(commands: Any) -> None:
    """Adds ``doctor``."""
    parser = commands.add_parser(
        "doctor",
        help="versions, devices and flags, and whether the installed jaxlib computes correctly",
        description="Shows versions, devices, memory and the variables that JAX reads, and runs "
        "computations that releases of jaxlib are known to get wrong, each against float64. Takes "
        "about ten seconds.",
        epilog="FAIL: transformers compute this, and here it is wrong: the exit status is 1. note: "
        "something is wrong or unwise that no transformer was seen to suffer from, or that is a "
        "matter of choice: the exit status stays 0.",
    )
    parser.set_defaults(run=examine)


def examine(options: argparse.Namespace) -> None:
    """Prints what was found; ends with status 1 where something is wrong."""
    del options
    print_table("This machine:", doctor.machine())
    variables = doctor.variables(os.environ)
    print_table("Variables that JAX reads:", list(variables.items()) or [("none", "")])
    examined = list(doctor.examined())
    # Started here only now: some accelerators serve one process at a time.
    if examined[0].name != doctor.STARTS:
        print_table("Devices:", doctor.devices())
    findings = [*doctor.judged(os.environ), *examined]
    table = Table(box=None, pad_edge=False, show_header=False)
    for finding in findings:
        table.add_row(finding.name, finding.status)
    Console(width=None if sys.stdout.isatty() else 200).print(table, markup=False)
    for finding in findings:
        if finding.status != "PASS":
            print(f"\n{finding.status}: {finding.name}\n  {finding.meaning}")
            print(f"  What to do: {finding.remedy}")
            if finding.issue:
                print(f"  Reported: {finding.issue}")
    if not doctor.is_well(findings):
        sys.exit(1)
    print("\nNothing is wrong that transformers compute.")
