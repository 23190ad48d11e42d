"""Rows of GLUE's nine tasks and its diagnostic set, from the distributed files.

References:
    Wang et al., GLUE, https://arxiv.org/abs/1804.07461
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from jaxformer.checks import check_fields, one_of
from jaxformer.data.bad_rows import OnBadRow, read_rows
from jaxformer.data.files.lines import Malformed
from jaxformer.data.files.record import Record
from jaxformer.data.files.tables import read_records
from jaxformer.data.labels import Classes, LabelKind, Number, in_order, label_of
from jaxformer.data.tasks.glue_tasks import TASKS, GlueTask, plain_name
from jaxformer.data.tasks.labelled_text import LabelledRow, LabelledRows
from jaxformer.errors import DataError
from jaxformer.io.paths import any_path

_log = logging.getLogger(__name__)


# The diagnostic set is distributed under several names.
_FOLDERS = {"AX": ("ax", "diagnostic", "diagnostics")}
_STEMS = {("AX", "test"): ("test", "AX", "diagnostic")}
_INDEX = ("index", "id", "idx")
_MSR = dict.fromkeys(("train", "dev"), ("msr_paraphrase_train.txt",))
_MSR |= {"test": ("msr_paraphrase_test.txt",)}
_DEV_IDS = ("mrpc_dev_ids.tsv", "dev_ids.tsv")


class QueryRow(NamedTuple):
    """A row whose label is to be predicted."""

    index: str
    """Its index in a submission."""
    row: LabelledRow


@dataclass(frozen=True)
class GlueFolder:
    """The folder with the files of a task.

    They may be those that GLUE distributes (CoLA/train.tsv, dev.tsv, test.tsv; of MRPC also
    Microsoft's msr_paraphrase_train.txt with mrpc_dev_ids.tsv), Parquet files as on the Hugging
    Face hub (cola/train-00000-of-00001.parquet), or folders that `datasets.save_to_disk` wrote.
    """

    root: str
    """The folder with all tasks' folders."""
    task: GlueTask
    """The task."""

    def files(self, split: str) -> tuple[Path, ...]:
        """Returns the tables of a split ("train", "dev", "test_matched"), if any."""
        for folder in self._folders():
            hub = split.replace("dev", "validation")
            stems = _STEMS.get((self.task.title, split), (split,))
            names = (*(f"{stem}.tsv" for stem in stems), f"{hub}.parquet", f"{hub}-*.parquet", hub)
            names += _MSR.get(split, ()) if self.task.title == "MRPC" else ()
            found = (sorted(folder.glob(name)) for name in names)
            if tables := next(filter(None, found), None):
                return tuple(tables)
        return ()

    def missing(self) -> list[str]:
        """Returns the required files of the task that are missing."""
        home = any_path(self.root, "root") / self.task.title
        return [f"{home}/{x}.tsv" for x in ("train", *self.task.dev) if not self.files(x)]

    def rows(self, split: str, on_bad_row: OnBadRow = "stop") -> list[LabelledRow]:
        """Returns the labelled rows of a split.

        Lines whose number of fields differs from the first line's are left out, as in other loaders
        of GLUE, and a warning gives their number: QQP has some with a line break in a question. In
        Microsoft's table of MRPC, the rows that mrpc_dev_ids.tsv names are the split "dev" and the
        others "train"; without that file all are "train".
        """
        tables = self._needed(split)
        header = self.task.title != "CoLA" or tables[0].suffix != ".tsv"
        dev = _dev_ids(tables[0])

        def records(malformed: Malformed) -> Iterator[Record]:
            del malformed  # such lines are left out in either case
            for record in _records(tables, header):
                if dev is None or (_msr_ids(record) in dev) == (split == "dev"):
                    yield record

        source = f"{tables[0]}, the split {split!r},"
        return read_rows(source, self._row, on_bad_row, records)

    def _row(self, record: Record) -> LabelledRow:
        return LabelledRow(record.where, self._texts(record), self._label(record))

    def query_rows(self, split: str) -> list[QueryRow]:
        """Returns the rows of a split whose labels are to be predicted."""
        rows: list[QueryRow] = []
        for table in (tables := self._needed(split)):
            for record in read_records(table):
                named = next((name for name in _INDEX if name in record.values), None)
                index = len(rows) if named is None else record.values[named]
                row = LabelledRow(record.where, self._texts(record), None)
                rows.append(QueryRow(str(index), row))
        if not rows:
            raise DataError(f"{tables[0]} has no rows")
        return rows

    def _folders(self) -> Iterator[Path]:
        root = any_path(self.root, "root")
        names = (plain_name(self.task.title), *_FOLDERS.get(self.task.title, ()))
        if root.is_dir():
            yield from (item for item in sorted(root.iterdir()) if plain_name(item.name) in names)

    def _needed(self, split: str) -> tuple[Path, ...]:
        if tables := self.files(split):
            return tables
        file = any_path(self.root, "root") / self.task.title / f"{split}.tsv"
        raise DataError(f"{file} does not exist: it must hold the split {split!r} of GLUE's task")

    def _texts(self, record: Record) -> tuple[str, ...]:
        columns = self.task.text
        if self.task.title == "CoLA" and "3" in record.values:
            columns = ("3",)  # the file has no header
        elif self.task.hub_text and self.task.hub_text[0] in record.values:
            columns = self.task.hub_text
        return tuple(record.text(column) for column in columns)

    def _label(self, record: Record) -> str:
        coded = self.task.label not in record.values and "label" in record.values
        label = label_of(record, "label" if coded else self.task.label)
        names, hub = self.task.labels, self.task.hub_labels
        if not names or label in names:
            return label
        if label in hub:
            return names[hub.index(label)]
        if label.isdecimal() and int(label) < len(names):
            return names[int(label)]
        raise DataError(
            f"{record.where}: the label {label!r} is not one of {self.task.title}'s: "
            f"{', '.join(names)}"
        )


@dataclass(frozen=True)
class Glue(LabelledRows):
    """A task of GLUE, from the distributed files.

    Rows of a batch are as in `LabelledRows`. STS-B's labels are numbers; those of other tasks are
    classes in the order of GLUE's Parquet files, even if some do not occur.

    References:
        Wang et al., GLUE, https://arxiv.org/abs/1804.07461
    """

    task: str = "sst2"
    """The task: cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte or wnli."""

    folder: str = "GLUE"
    """The folder with the tasks' folders (CoLA, SST-2, ...)."""

    validation: str = "dev"
    """The split for validation: "dev"; for MNLI "dev_matched", which is also its "dev", or
    "dev_mismatched"."""

    longest_row = 128

    def __post_init__(self):
        super().__post_init__()
        check_fields(self, "data", task=one_of(tuple(TASKS)))
        if self.validation != "dev":
            check_fields(self, "data", validation=one_of(self.spec.dev))

    @property
    def spec(self) -> GlueTask:
        """The task."""
        return TASKS[self.task]

    @property
    def files(self) -> GlueFolder:
        """The task's files."""
        return GlueFolder(self.folder, self.spec)

    @property
    def label_kind(self) -> LabelKind:
        return Classes() if self.spec.labels else Number()

    @property
    def origin(self) -> str:
        return str(Path(self.folder, self.spec.title))

    def train_rows(self):
        return self.files.rows("train", self.on_bad_row)

    def validation_rows(self):
        split = self.spec.dev[0] if self.validation == "dev" else self.validation
        table = next(iter(self.files.files(split)), None)
        if table is not None and _is_msr(table) and _dev_ids(table) is None:
            _log.warning("%s without %s: a share of its rows is held out", table, _DEV_IDS[0])
            return None
        return self.files.rows(split, self.on_bad_row)

    def label_names(self, train):
        del train
        return in_order(self.spec.labels, self.label_order)


def _is_msr(table: Path) -> bool:
    return table.name in _MSR["train"]


def _dev_ids(table: Path) -> set[tuple[str, ...]] | None:
    """The ids of the pairs in MRPC's split "dev", if the table is Microsoft's."""
    found = (table.with_name(name) for name in _DEV_IDS)
    file = next((file for file in found if file.is_file()), None)
    if file is None or not _is_msr(table):
        return None
    return {tuple(map(str, record.values.values())) for record in read_records(file, header=False)}


def _msr_ids(record: Record) -> tuple[str, ...]:
    return tuple(str(record.value(column)) for column in ("#1 ID", "#2 ID"))


def _records(tables: Sequence[Path], header: bool) -> Iterator[Record]:
    malformed: list[str] = []
    for table in tables:
        yield from read_records(table, header, malformed=malformed.append)
    if malformed:
        _log.warning("%s; lines left out in all: %s", malformed[0], f"{len(malformed):,}")
