from hypothesis import given, settings
from hypothesis import strategies as st
from text_tokenizers import byte_level, llama

from jaxformer.generation.text_stream import StopStrings, TextStream


def ids_of(tokenizer, *names):
    return [tokenizer.token_to_id(name) for name in names]


@settings(max_examples=100)
@given(
    make=st.sampled_from([byte_level, llama]),
    ids=st.lists(st.integers(0, 271), max_size=20),
    sizes=st.lists(st.integers(0, 5), max_size=10),
    stop=st.lists(st.sampled_from(["the", " the", "s.", "日", "\ufffd\ufffd", "a"]), max_size=3),
)
def test_the_text_is_what_decoding_all_and_cutting_it_gives(make, ids, sizes, stop):
    tokenizer = make()
    stream, start, shown = TextStream(tokenizer, stop), 0, ""
    for size in [*sizes, len(ids)]:
        shown += stream.push(ids[start : start + size])
        start += size
        assert stream.text == shown
    shown += stream.flush()
    whole = StopStrings(stop)
    text = whole.push(tokenizer.decode(ids)) + whole.flush()
    assert stream.text == shown == text
    assert stream.stopped_by == whole.found
    assert stream.finished
    assert stream.push(ids) == stream.flush() == ""


def test_a_stop_string_may_span_tokens_and_end_inside_one():
    tokenizer = llama()
    stream = TextStream(tokenizer, ["the th"])
    ids = ids_of(tokenizer, "s", ".", "▁the", "▁the", "s")
    assert [stream.push([id_]) for id_ in ids] == ["s", ".", " ", "", ""]
    assert (stream.text, stream.stopped_by, stream.finished) == ("s. ", "the th", True)
    assert stream.push(ids) == stream.flush() == ""
    assert stream.text == "s. "


def test_the_end_of_the_text_can_complete_a_stop_string():
    stream = TextStream(llama(), ["é"])
    assert stream.push("é".encode()) == ""
    assert (stream.flush(), stream.stopped_by, stream.text) == ("", "é", "")


letters = st.text("ab", max_size=20)
stops = st.lists(st.text("ab", min_size=1, max_size=4), max_size=3)


def expected(text, stop):
    """Reads to the first place where a stop string ends, and takes the longest that does."""
    for end in range(1, len(text) + 1):
        found = [one for one in stop if text[:end].endswith(one)]
        if found:
            longest = max(found, key=len)
            return text[: end - len(longest)], longest
    return text, None


@settings(max_examples=300)
@given(parts=st.lists(letters, max_size=8), stop=stops)
def test_a_text_ends_before_the_first_stop_string_however_it_is_cut(parts, stop):
    watch = StopStrings(stop)
    shown = [watch.push(part) for part in parts] + [watch.flush()]
    assert ("".join(shown), watch.found) == expected("".join(parts), stop)


@settings(max_examples=300)
@given(text=letters, stop=stops)
def test_only_what_may_begin_a_stop_string_is_held_back(text, stop):
    watch = StopStrings(stop)
    shown = "".join(watch.push(character) for character in text)
    if watch.found is None:
        held = text[len(shown) :]
        assert text.startswith(shown)
        assert not held or any(one.startswith(held) for one in stop)
        for start in range(len(shown)):
            assert not any(one.startswith(text[start:]) for one in stop)
