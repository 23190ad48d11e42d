"""A folder is written whole, or nothing of it is there."""

import pytest

from jaxformer.errors import DataError
from jaxformer.folders import write_whole
from jaxformer.hub.folders import write_settings


def test_a_folder_appears_whole_or_not_at_all(tmp_path):
    target = tmp_path / "deep" / "target"

    def fail(folder):
        (folder / "half").write_text("x")
        raise OSError("the disk is gone")

    with pytest.raises(
        DataError, match="target cannot be written, and nothing of it was: the disk"
    ):
        write_whole(target, 0, fail)
    with pytest.raises(KeyboardInterrupt):
        write_whole(target, 0, lambda folder: (_ for _ in ()).throw(KeyboardInterrupt))
    assert not list(tmp_path.iterdir())
    write_whole(target, 0, lambda folder: write_settings(folder, {"b": 1, "a": 2}))
    assert (target / "config.json").read_text() == '{\n  "a": 2,\n  "b": 1\n}\n'
    assert [item.name for item in target.parent.iterdir()] == ["target"]


def test_an_empty_folder_is_filled(tmp_path):
    target = tmp_path / "empty"
    target.mkdir()
    write_whole(target, 0, lambda folder: (folder / "new").write_text("x"))
    assert (target / "new").read_text() == "x"
