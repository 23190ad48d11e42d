"""Reads the files of a folder, or those that a table names."""

import os
from collections.abc import Callable, Sequence

from jaxformer.data.files.record import table_row
from jaxformer.data.files.tables import read_records
from jaxformer.errors import DataError
from jaxformer.io.paths import AnyPath, any_path, is_remote
from jaxformer.pretrained.prediction.reader import Reader

FILE = "file"
"""The column with the path of a file."""


class FileReader(Reader):
    """Reads the files of a folder, or those named in a column of a table."""

    kind = "files"
    """What the files hold, for messages."""
    found_in: Callable[[AnyPath], Sequence[str]]
    """Returns the names of the files of a folder."""
    _folder: AnyPath | None = None

    def records(self, path, header):
        """Yields a row with the path of each file in a folder, or the rows of a table."""
        if not path.is_dir():
            self._folder = path.parent
            return read_records(path, header)
        names = self.found_in(path)
        if not names:
            raise DataError(f"{path} holds no {self.kind}")
        rows = ({FILE: str(path / name)} for name in names)
        return (table_row(path, number, row) for number, row in enumerate(rows, start=1))

    def file(self, name: str) -> AnyPath:
        """Returns the path of a file, which may be relative to the table's folder."""
        file = any_path(os.path.expanduser(name), self.kind)
        if self._folder is None or is_remote(file):
            return file
        return beside if (beside := self._folder / name).is_file() else file
