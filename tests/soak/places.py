"""Where a run lies: strange paths to it, links in it, and another run in its place."""

import random
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from unittest.mock import patch

import fsspec
from object_store import MemoryStore
from tiny_run import contents

from jaxformer.checkpoints import lease
from jaxformer.checkpoints.run_dir import locked
from jaxformer.distributed.preemption import StopSignal
from jaxformer.errors import RunError
from jaxformer.io.paths import any_path
from soak.damage import continued, exported, inspected, loaded
from soak.runs import Whole, train, whole_run
from soak.trial import Refused, Silent, Trial, chance, heard, judge, reporting

PART = "places"
NAMES = ("a run", "läufe", "実行", "100%", "#1?", "-x", "a=b", "{x}", "'q\"", "..run", "r" * 200)
WRITTEN = (
    ".lock",
    "config.json",
    "metrics.jsonl",
    "wall_time.jsonl",
    "evaluation.json",
    "loss.png",
    "checkpoints",
)
"""What training writes in a run's folder."""


class Places:
    """Opens a run by strange paths, trains through links, and takes the place of a run."""

    def __init__(self, folder: Path, seed: int):
        self.folder, self.seed = folder, seed
        folder.mkdir(parents=True)
        with heard():
            self.whole = whole_run(folder.parent, "text")

    def trial(self, index: int) -> Trial:
        """Does one of these things."""
        dice = chance(self.seed, PART, index)
        attack = dice.choice((_strange_path, _strange_path, _link, _replaced, _lost_lease))
        home, log = self.folder / "home", []
        home.mkdir()
        try:
            outcome, detail = judge(lambda: attack(self.whole, home, dice, log))
        finally:
            shutil.rmtree(home)
        return Trial(PART, index, " ".join((attack.__name__.strip("_"), *log)), outcome, detail)


def _strange_path(whole: Whole, home: Path, dice: random.Random, log: list[str]) -> None:
    """By whatever path, a run is the same run, and nothing in it is damaged."""
    run = whole.copy(home / dice.choice(NAMES))
    path = run
    for _ in range(dice.randint(1, 3)):
        path = dice.choice((_through_link, _there_and_back))(path, home, dice)
    way = dice.choice((inspected, loaded, exported, continued))
    log += [str(path.relative_to(home)), way.__name__]
    way(whole, path)
    if any(home.rglob("*.damaged*")):
        raise Silent("an intact checkpoint was called damaged")


def _through_link(path: Path, home: Path, dice: random.Random) -> Path:
    link = home / f"link-{dice.randrange(10**6)}"
    inside = dice.random() < 0.5
    link.symlink_to(path.parent if inside else path)
    return link / path.name if inside else link


def _there_and_back(path: Path, home: Path, dice: random.Random) -> Path:
    (home / "aside").mkdir(exist_ok=True)
    return path.parent / ".." / path.parent.name / path.name


def _link(whole: Whole, home: Path, dice: random.Random, log: list[str]) -> None:
    """Whatever in a run is a link, nothing outside is changed; without a word it ends as ever."""
    run, name, outside = whole.copy(home / "run"), dice.choice(WRITTEN), home / "outside"
    item = run / name
    if item.is_dir():
        shutil.copytree(item, outside)
        shutil.rmtree(item)
    else:
        outside.write_bytes(item.read_bytes() if item.is_file() else b"precious")
        item.unlink(missing_ok=True)
    item.symlink_to(outside)
    log.append(name)
    before = contents(outside)
    try:
        continued(whole, run)
    finally:
        if contents(outside) != before:
            raise Silent(f"what {name} led to was changed")


def _replaced(whole: Whole, home: Path, dice: random.Random, log: list[str]) -> None:
    """A run whose folder is replaced while it trains stops, and leaves the other as it is."""
    run, steps = whole.copy(home / "run"), dice.randint(1, 3)
    log.append(f"after {steps} steps")
    found: dict[str, bytes | None] = {}

    def replace() -> None:
        shutil.rmtree(run)
        whole.copy(run)
        found.update(contents(run))

    with _after(steps, replace):
        _must_stop(whole, run)
    if contents(run) != found:
        raise Silent("the run that was replaced wrote into the other")


def _lost_lease(whole: Whole, home: Path, dice: random.Random, log: list[str]) -> None:
    """Who does not renew its lease loses it to the next, and learns of that when it is back."""
    fsspec.register_implementation("gs", MemoryStore, clobber=True)
    run = any_path(f"gs://soak-{uuid.uuid4().hex}/run", "run_dir")
    with ExitStack() as stack:
        for name, seconds in (("BEAT", 60), ("EXPIRY", 0.2), ("_POLL", 0.01)):
            stack.enter_context(patch.object(lease, name, seconds))
        stack.enter_context(heard())
        check, looks = stack.enter_context(locked(run)), dice.randrange(3)
        log.append(f"after {looks} looks")
        for _ in range(looks):
            check()
        with closing(lease.Lease(run)) as other:
            other.check()
            try:
                check()
            except RunError as error:
                raise Refused(str(error)) from error
    raise Silent("a lease that was lost is held")


@contextmanager
def _after(steps: int, action: Callable[[], None]) -> Iterator[None]:
    """Does something after some steps of a training in this process."""
    requested, count = StopSignal.requested, 0

    def asked(self: StopSignal, step: int) -> bool:
        nonlocal count
        count += 1
        if count == steps:
            action()
        return requested(self, step)

    with patch.object(StopSignal, "requested", asked):
        yield


def _must_stop(whole: Whole, run: Path) -> None:
    try:
        reporting(lambda: train(whole.experiment, "--run-dir", run))
    except Refused as refused:
        if "stopped: " not in str(refused):
            raise
    else:
        raise Silent("a run that was replaced ended as if nothing had happened")
