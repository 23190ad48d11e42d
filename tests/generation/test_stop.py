from hypothesis import given, settings
from hypothesis import strategies as st

from jaxformer.generation.text_stream import StopStrings

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
