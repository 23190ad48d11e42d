"""JSON from outside: a value of the right type, or one sentence that names the place."""

import pytest

from jaxformer.errors import DataError
from jaxformer.io.files import parse_json, read_json


def test_values_of_each_kind(tmp_path):
    path = tmp_path / "a.json"
    path.write_bytes(b'\xef\xbb\xbf{"a": [1, 2.5, null, "\xc3\xa9"]}')
    assert read_json(path) == {"a": [1, 2.5, None, "é"]}
    assert parse_json("[1]", "here", list) == [1]
    assert parse_json("3", "here", object) == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "not valid JSON: Expecting value at column 1$"),
        (b'{"a": 1', "not valid JSON: .* at column 8$"),
        (b'{"a": 1,\n\n"b"}', "not valid JSON: .* at column 4 of line 3$"),
        (b'{"a": "\xff"}', "not UTF-8 at byte 7 of the line"),
        (b'{"a":\n"\xff"}', "not UTF-8 at byte 1 of line 2"),
        (b'{\x00"\x00a\x00"\x00', "not valid JSON"),
        (b"[" * 100_000, "not valid JSON: nested too deeply"),
        (b'{"a":' * 100_000, "not valid JSON: nested too deeply"),
        (b'{"a": %s}' % (b"9" * 4301), "not valid JSON: a number has too many digits"),
        (b"[1]", "expected a JSON object, found a list"),
        (b"true", "expected a JSON object, found a boolean"),
        (b"null", "expected a JSON object, found null"),
        (b"NaN", "expected a JSON object, found a number"),
    ],
)
def test_what_is_no_object_is_refused(tmp_path, text, message):
    with pytest.raises(DataError, match=rf"^b\.jsonl:7: {message}"):
        parse_json(text, "b.jsonl:7")
    (tmp_path / "a.json").write_bytes(text)
    with pytest.raises(DataError, match=rf"a\.json: {message}"):
        read_json(tmp_path / "a.json")
