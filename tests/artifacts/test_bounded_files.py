"""What strangers, editors and crashes leave under a known name is read within bounds, or refused in one line."""

import os
from pathlib import Path

import pytest

from sparsefront.artifacts.bounded_files import (
    MOST_DEPTH,
    Unreadable,
    load_yaml_bounded,
    read_bytes_bounded,
    read_json_bounded,
    read_text_bounded,
)

LAUGHS = "\n".join(["a0: &a0 [lol]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10))])


def test_what_is_in_bounds_is_read(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(b"\xef\xbb\xbf" + '{"ä": [1, -2.5, 18446744073709551615, "\\udce4", null]}\r\n'.encode())
    assert read_text_bounded(file).endswith("]}\r\n")
    assert read_json_bounded(file) == {"ä": [1, -2.5, 2**64 - 1, "\udce4", None]}
    file.write_text("[" * MOST_DEPTH + "]" * MOST_DEPTH)
    read_json_bounded(file)
    load_yaml_bounded(file)
    file.write_text("base: &base {a: 1}\nother: {<<: *base, b: .nan}\nlist: [*base, *base]\n")
    found = load_yaml_bounded(file)
    assert found["other"]["a"] == 1 and found["list"] == [{"a": 1}, {"a": 1}]
    file.write_text("")
    assert load_yaml_bounded(file) is None


@pytest.mark.parametrize(
    "content, complaint",
    [
        (b"", r"not JSON \(Expecting value: line 1 column 1 \(char 0\)\)"),
        (b'{"a": \xff}', r"not UTF-8 text \(byte 0xff at position 6\)"),
        ("{}".encode("utf-16"), "is UTF-16 text; save it as UTF-8"),
        (b"[" * (MOST_DEPTH + 1) + b"]" * (MOST_DEPTH + 1), "nested deeper than 64 levels"),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "nested deeper than 64 levels"),
        (b'{"a": NaN}', "NaN is no number"),
        (b'{"a": -Infinity}', "-Infinity is no number"),
        (b'{"a": 1e999}', "holds the number 1e999, which is too large"),
        (b"1" * 400, "holds a whole number of 400 digits, more than 20"),
        (b"-" + b"1" * 5000, "holds a whole number of 5000 digits, more than 20"),
        (b'"\\ud800"', "a string holds half a character"),
    ],
)
def test_json_out_of_bounds(tmp_path, content, complaint):
    file = tmp_path / "row.json"
    file.write_bytes(content)
    with pytest.raises(Unreadable, match=complaint) as raised:
        read_json_bounded(file)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "text, complaint",
    [
        (LAUGHS, "stands for more than 16777216 characters"),
        ("&a [1, *a]", r"holds an alias, \*a, inside of what it stands for"),
        ("[" * (MOST_DEPTH + 1) + "]" * (MOST_DEPTH + 1), "nested deeper than 64 levels"),
        ("- " * 100_000 + "1", "nested deeper than 64 levels"),
        (
            "\n".join(["a0: &a0 1", *(f"a{n}: &a{n} {'[' * 60}*a{n - 1}{']' * 60}" for n in range(1, 400))]),
            "nested deeper",
        ),
        ("[1,\n{\n", r"not YAML \(line 3, column 1: did not find expected node content\)"),
        ("[*b]", r"not YAML \(line 1, column 2: found undefined alias\)"),
        ("day: 2024-13-45", r"not YAML \(month must be in 1..12"),
        ("!!int ''", "not YAML"),
        ("0x" + "f" * 10_000, "not YAML"),
        ("a: \x07", "not YAML"),
    ],
)
def test_yaml_out_of_bounds(tmp_path, text, complaint):
    file = tmp_path / "config.yaml"
    file.write_text(text)
    with pytest.raises(Unreadable, match=complaint) as raised:
        load_yaml_bounded(file)
    assert "\n" not in str(raised.value)


def test_what_is_no_file(tmp_path):
    with pytest.raises(Unreadable, match="No such file or directory"):
        read_bytes_bounded(tmp_path / "nothing")
    with pytest.raises(Unreadable, match="is a folder, not a file"):
        read_bytes_bounded(tmp_path)
    with pytest.raises(Unreadable, match="a name that no file can have"):
        read_bytes_bounded(tmp_path / "a\0b")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(Unreadable, match="is no regular file"):
        read_bytes_bounded(tmp_path / "pipe")
    with pytest.raises(Unreadable, match="is no regular file"):
        read_bytes_bounded(Path("/dev/zero"))


def test_large_file_is_not_read(tmp_path):
    file = tmp_path / "row.json"
    with file.open("wb") as stream:
        stream.truncate(2**40)
    with pytest.raises(Unreadable, match="has 1099511627776 bytes, more than the 67108864 that are read"):
        read_json_bounded(file)
    file.write_bytes(b"12345")
    assert read_bytes_bounded(file, max_bytes=5) == b"12345"
    with pytest.raises(Unreadable, match="has 5 bytes, more than the 4 that are read"):
        read_bytes_bounded(file, max_bytes=4)
