"""The text of a CSV file of results: whole lines, cells as they are written."""

import csv
import io
from collections.abc import Iterable

# A line torn inside a character must not stop the repair: bytes that are no UTF-8 pass through unchanged.
TEXT = {"encoding": "utf-8", "errors": "surrogateescape"}
# One cell holds the kernels of all layers as JSON; the csv module's own limit is 128 KiB.
csv.field_size_limit(2**31 - 1)


def whole_lines(text: str) -> str:
    """The text up to its last line end that is not inside quotes."""
    while text and (not text.endswith("\n") or text.count('"') % 2):
        text = text[: text.rfind("\n", 0, len(text) - 1) + 1]
    return text


def parse_lines(text: str) -> tuple[list[str], list[dict[str, str]]]:
    """The header, and each line as column -> cell."""
    reader = csv.DictReader(io.StringIO(text, newline=""), restval="", restkey="")
    return list(reader.fieldnames or []), list(reader)


def format_lines(header: list[str], lines: Iterable[dict], *, with_header: bool) -> str:
    """The text of lines under a header; cells of other columns are left out."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, header, restval="", extrasaction="ignore", lineterminator="\n")
    if with_header:
        writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()
