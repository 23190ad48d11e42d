"""Programs of a cluster that only write down how they were called."""

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

GCLOUD = """
command = [word[10:] for word in words if word.startswith("--command=")]
print("ACTIVE", flush=True) if "describe" in words else None
own = {"HOME": os.path.join(os.environ["HOME"], words[5]), "JAX_PROCESS_ID": words[5][-1]}
done = subprocess.run(["bash", "-c", *command], env=os.environ | own) if command else None
sys.exit(done and done.returncode)
"""
"""Runs the commands for the machines on this one, each with a separate home folder."""


@pytest.fixture
def cluster(tmp_path):
    """Runs scripts with stand-ins for programs; `calls` are the words that each got."""
    programs = tmp_path / "bin"
    programs.mkdir()
    record = tmp_path / "calls"

    def stand_in(name, then=""):
        """`then` is Python, with the words of the call as `words`."""
        lines = [
            f"#!{sys.executable}",
            "import json, os, subprocess, sys",
            "words = [os.path.basename(sys.argv[0]), *sys.argv[1:]]",
            f"with open({str(record)!r}, 'a') as file: file.write(json.dumps(words) + chr(10))",
            then,
        ]
        (programs / name).write_text("\n".join(lines))
        (programs / name).chmod(0o755)

    def machines(*names):
        """The homes of machines that gcloud reaches, as `setup` leaves them; and nobody sleeps."""
        stand_in("gcloud", GCLOUD)
        stand_in("sleep")
        homes = [tmp_path / name for name in names]
        for home in homes:
            (home / "jaxformer-python" / "bin").mkdir(parents=True)
            (home / "jaxformer-python" / "bin" / "activate").touch()
        return homes

    def run(script, *arguments, **variables):
        file = tmp_path / "job.sh"
        file.write_text(script)
        path = f"{programs}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", file, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False,
            env={"PATH": path, "HOME": str(tmp_path), **variables}, timeout=60,
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr

    def calls():
        lines = record.read_text().splitlines() if record.exists() else []
        return [json.loads(line) for line in lines]

    return SimpleNamespace(
        stand_in=stand_in, machines=machines, run=run, calls=calls, folder=tmp_path
    )
