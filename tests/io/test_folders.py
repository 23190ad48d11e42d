"""A folder is written whole, or nothing of it is there."""

from pathlib import Path

import pytest

from jaxformer.errors import ConfigError, DataError
from jaxformer.hub.hf_config import write_hf_config
from jaxformer.io.files import check_unused, move_into_place, temporary_folder, write_whole


def test_a_folder_appears_whole_or_not_at_all(tmp_path):
    target = tmp_path / "deep" / "target"

    def fail(folder):
        (folder / "half").write_text("x")
        raise OSError("the disk is gone")

    with pytest.raises(
        DataError, match="target cannot be written: the disk is gone; nothing was written"
    ):
        write_whole(target, 0, fail)
    with pytest.raises(KeyboardInterrupt):
        write_whole(target, 0, lambda folder: (_ for _ in ()).throw(KeyboardInterrupt))
    assert not list(tmp_path.iterdir())
    write_whole(target, 0, lambda folder: write_hf_config(folder, {"b": 1, "a": 2}))
    assert (target / "config.json").read_text() == '{\n  "a": 2,\n  "b": 1\n}\n'
    assert [item.name for item in target.parent.iterdir()] == ["target"]


def fill(folder):
    (folder / "new").write_text("x")


def test_a_link_is_followed(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "dangling").symlink_to("other/real")
    for link, target in (("link", "real"), ("dangling", "other/real")):
        write_whole(tmp_path / link, 0, fill)
        assert (tmp_path / target / "new").read_text() == "x"
        assert (tmp_path / link).is_symlink()
    assert sorted(item.name for item in tmp_path.iterdir()) == ["dangling", "link", "other", "real"]


def test_places_where_nothing_can_be_written(tmp_path):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(ConfigError, match="cannot be read: File name too long"):
        write_whole(tmp_path / ("a" * 300), 0, fill)
    places = (tmp_path / "file" / "out", Path("/proc/out"), tmp_path / "loop")
    for place in places:
        with pytest.raises(DataError, match="; nothing was written"):
            write_whole(place, 0, fill)
    assert (tmp_path / "file").read_text() == "mine"
    assert sorted(item.name for item in tmp_path.iterdir()) == ["file", "loop"]


def test_places_that_are_taken(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("mine")
    for place, taken in ((tmp_path, "is not empty"), (tmp_path / "file", "is a file")):
        with pytest.raises(ConfigError, match=f"{taken}: name a new or empty folder"):
            write_whole(place, 0, fill)
    with pytest.raises(ConfigError, match="folder = ftp://bucket/out"):
        write_whole("ftp://bucket/out", 0, fill)

    def refuse(_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(ConfigError, match="cannot be read: Permission denied"):
        check_unused(tmp_path)


def test_the_first_of_two_writers_wins(tmp_path):
    home = tmp_path / "home"
    with temporary_folder(home) as slow:
        (slow / "a").write_text("slow")
        with temporary_folder(home) as fast:
            (fast / "a").write_text("fast")
            move_into_place(fast, home)
        move_into_place(slow, home)
    assert (home / "a").read_text() == "fast"
    assert [path.name for path in tmp_path.iterdir()] == ["home"]
