from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxformer.data import Document, TextSource
from jaxformer.data.split import Split, held_out
from jaxformer.errors import DataError


@dataclass(frozen=True)
class Texts(TextSource):
    texts: tuple[str, ...]

    def documents(self):
        for number, text in enumerate(self.texts):
            yield Document(f"{number}", text)


NAMES = [f"folder/{number}.txt" for number in range(2000)]


def test_the_share_is_as_asked_and_the_choice_is_stable():
    chosen = held_out(NAMES, 0.1, seed=3)
    assert 0.07 < chosen.mean() < 0.13
    np.testing.assert_array_equal(chosen, held_out(NAMES, 0.1, seed=3))
    assert (chosen != held_out(NAMES, 0.1, seed=4)).any()


def test_adding_documents_moves_no_other():
    half = held_out(NAMES[::2], 0.1, seed=0)
    np.testing.assert_array_equal(held_out(NAMES, 0.1, seed=0)[::2], half)


def test_a_larger_share_only_adds_documents():
    assert (held_out(NAMES, 0.1, seed=0) <= held_out(NAMES, 0.3, seed=0)).all()


@given(count=st.integers(2, 6), fraction=st.floats(1e-6, 1 - 1e-6), seed=st.integers(0, 2**40))
def test_both_sides_get_a_document(count, fraction, seed):
    chosen = held_out(NAMES[:count], fraction, seed)
    assert 0 < chosen.sum() < count


@pytest.mark.parametrize(
    ("count", "expected"), [(2, 1), (15, 1), (60, 6), (200, 20), (937, 20), (2000, 20), (5000, 50)]
)
def test_a_percent_or_twenty_rows_of_which_those_alike_stay_together(count, expected):
    names = [f"row {number}" for number in range(count)]
    chosen = held_out(names, None, seed=1)
    assert chosen.sum() == expected
    twice = held_out([*names, *names], None, seed=1)
    np.testing.assert_array_equal(twice[:count], twice[count:])


def test_every_document_is_on_one_side_in_order():
    texts = Texts(tuple(f"text {number}" for number in range(50)))
    entries = list(Split(texts, 0.3, seed=0))
    assert [document for document, _ in entries] == list(texts.documents())
    assert {side for _, side in entries} == {True, False}


def test_empty_documents_are_left_out():
    names = [document.name for document, _ in Split(Texts(("a", "", "b", "")), 0.5, seed=0)]
    assert names == ["0", "2"]


@given(text=st.text(min_size=2), fraction=st.floats(0.01, 0.99))
def test_a_single_document_is_split_at_its_tail(text, fraction):
    (head, first), (tail, second) = Split(Texts((text,)), fraction, seed=0)
    assert (first, second) == (False, True)
    assert head.text
    assert tail.text
    assert head.text + tail.text == text


def test_the_tail_starts_with_a_line():
    text = "".join(f"line {number}\n" for number in range(100))
    (head, _), (tail, _) = Split(Texts((text,)), 0.1, seed=0)
    assert head.text.endswith("\n")
    assert 0.05 < len(tail.text) / len(text) < 0.1


@pytest.mark.parametrize("texts", [(), ("",), ("", "")])
def test_no_text_is_an_error(texts):
    with pytest.raises(DataError, match=r"holds no text: check its path"):
        list(Split(Texts(texts), 0.1, seed=0))


def test_one_character_cannot_be_split():
    with pytest.raises(DataError, match="too little to hold out a part"):
        list(Split(Texts(("a",)), 0.1, seed=0))


@dataclass(frozen=True)
class Changing(TextSource):
    passes: list[tuple[str, ...]]

    def documents(self):
        yield from Texts(self.passes.pop(0)).documents()


@pytest.mark.parametrize("later", [("a", "b"), ("a", "b", "c", "d"), ("a", "", "c")])
def test_documents_that_change_while_they_are_read_are_an_error(later):
    with pytest.raises(DataError, match=r"Changing\(.*\): the documents changed while"):
        list(Split(Changing([("a", "b", "c"), later]), 0.5, seed=0))
