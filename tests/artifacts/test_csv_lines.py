"""A CSV that grows line by line keeps its columns and its line ends."""

import pytest

from experiments.harness.rows import append_line, read_lines, replace_lines


def test_lines_come_back_in_their_order(tmp_path):
    path = tmp_path / "folder" / "rows.csv"
    assert read_lines(path) == []
    append_line(path, {"name": "a, b", "value": 1})
    append_line(path, {"name": "ä", "value": None})
    assert read_lines(path) == [{"name": "a, b", "value": "1"}, {"name": "ä", "value": ""}]
    assert path.read_bytes().count(b"\n") == 3 and b"\r" not in path.read_bytes()


def test_line_is_kept_up_to_date(tmp_path):
    path = tmp_path / "folder" / "calls.csv"
    for call, points in (("a", 1), ("b", 1), ("a", 2), ("b", 3)):
        replace_lines(path, {"call": call}, [{"call": call, "points": points}])
    assert read_lines(path) == [{"call": "a", "points": "2"}, {"call": "b", "points": "3"}]
    with pytest.raises(ValueError, match="has columns call,points, not call; name another file"):
        replace_lines(path, {"call": "a"}, [{"call": "a"}])
    assert [file.name for file in path.parent.iterdir()] == ["calls.csv"]


@pytest.mark.parametrize(
    "content",
    [
        "\ufeffa,b\n1,ä\n".encode(),
        "a;b\r\n1;ä\r\n".encode(),
        "a\tb\n1\tä\n".encode(),
        "a\tb\r\n1\tä\r\n".encode("utf-16"),
    ],
    ids=["mark", "semicolons", "tabs", "UTF-16"],
)
def test_spreadsheet_is_not_appended_to(tmp_path, content):
    path = tmp_path / "rows.csv"
    path.write_bytes(content)
    assert read_lines(path) == [{"a": "1", "b": "ä"}]
    with pytest.raises(ValueError, match="rows.csv was saved by a spreadsheet; save it as CSV in UTF-8 with commas"):
        append_line(path, {"a": 2, "b": 3})
    assert path.read_bytes() == content
    replace_lines(path, {"a": "1"}, [{"a": "1", "b": "new"}])
    assert path.read_bytes() == b"a,b\n1,new\n", "what is written whole is in our own form"


def test_what_is_no_table_is_named(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_bytes("a,b\n1,2\n".encode("utf-16")[:-1])
    with pytest.raises(ValueError, match="rows.csv: is UTF-16 text that is cut off; save it as CSV in UTF-8"):
        read_lines(path)
