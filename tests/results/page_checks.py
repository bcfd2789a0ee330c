"""What every page keeps."""

import re


def assert_self_contained(page: str) -> None:
    assert not re.search(r"<script[^>]+src\s*=", page), "a script is loaded from elsewhere"
    assert re.findall(r'<link[^>]+href="([^"]*)"', page) == ["data:,"], "a style is loaded from elsewhere"
    assert not re.search(r"(src|href)\s*=\s*[\"']?(https?:)?//", page), "something is loaded from a network"
