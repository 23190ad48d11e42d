"""Pages: one HTML file that is well formed, loads nothing and shows what it was given."""

import re

import numpy as np
import pytest
from matplotlib.figure import Figure
from pages import Outline

from jaxformer.errors import ArgumentError, DataError
from jaxformer.lab.page import Page, shown


@pytest.fixture
def picture():
    figure = Figure(figsize=(2, 1))
    figure.add_subplot().plot([1, 2])
    return figure


def written(page, tmp_path):
    return Outline(page.write(tmp_path / "page.html").read_text())


def test_a_page_is_one_well_formed_file_that_loads_nothing(tmp_path, picture):
    page = Page("Scores < 1 & more")
    page.section("First")
    page.text("a < b", "a second paragraph")
    page.table([["x", 1.0, 20_000], ["y & z", 0.25, 3]], ["name", "value", "count"], "Numbers")
    page.section("First")
    page.figure(picture, 'A "line"')
    page.figure(picture, "A line again", alt="A line from 1 to 2.")
    picture.savefig(tmp_path / "kept.png")
    page.figure(tmp_path / "kept.png", "From a file")
    outline = written(page, tmp_path)
    assert not re.search(r"https?:", "".join(v or "" for _, a in outline.tags for v in a.values()))
    images = outline.all("img")
    assert {image["src"].partition(";")[0] for image in images} == {"data:image/png"}
    assert [i["alt"] for i in images] == ['A "line"', "A line from 1 to 2.", "From a file"]
    assert {"Scores < 1 & more", "a < b", "y & z", "20,000", "0.25"} <= set(outline.texts)


def test_the_contents_lead_to_every_section(tmp_path):
    page = Page("p")
    for title in ("One: a", "One: a", "Zwölf"):
        page.section(title)
    outline = written(page, tmp_path)
    anchors = [attrs["id"] for attrs in outline.all("h2")]
    assert [attrs["href"] for attrs in outline.all("a")] == [f"#{anchor}" for anchor in anchors]
    assert len(set(anchors)) == 3


def test_columns_of_numbers_are_aligned_to_the_right(tmp_path):
    page = Page("p")
    page.table([["a", 1], ["b", 2.5]], ["name", "value"])
    page.table([], ["empty"])
    cells = written(page, tmp_path).all("td")
    assert [attrs.get("class") for attrs in cells] == [None, "number", None, "number"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (62831.853, "62,832"),
        (20000, "20,000"),
        (0.5, "0.5"),
        (3.14159, "3.142"),
        (1.5e12, "1.5e+12"),
        (np.float32(0.25), "0.25"),
        (1e-7, "1e-07"),
        (0, "0"),
        (True, "True"),
        ("12", "12"),
        (float("nan"), "nan"),
        (float("inf"), "inf"),
    ],
)
def test_cells_are_shown(value, text):
    assert shown(value) == text


def test_what_cannot_be_written_is_named(tmp_path, picture):
    page = Page("p")
    with pytest.raises(ArgumentError, match=r"path = .*page.txt"):
        page.write(tmp_path / "page.txt")
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot be written"):
        page.write(tmp_path / "file" / "page.html")
    with pytest.raises(ArgumentError, match="must be 2 cells"):
        page.table([[1]], ["a", "b"])
