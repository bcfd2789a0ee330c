"""A second name for a file takes the place of what was there, and is never written through."""

import os

import pytest

from sparsefront.artifacts.durable import link_or_copy


@pytest.mark.parametrize("links", [True, False], ids=["hard links", "no hard links"])
def test_a_second_name_replaces_what_was_there(tmp_path, monkeypatch, links):
    if not links:
        monkeypatch.setattr(os, "link", no_links)
    old, new, name = (tmp_path / name for name in ("old", "new", "name"))
    old.write_text("old")
    new.write_text("new")
    link_or_copy(old, name)
    assert name.read_text() == "old" and os.path.samefile(old, name) == links
    for _ in range(2):
        link_or_copy(new, name)
        assert name.read_text() == "new" and old.read_text() == "old" and os.path.samefile(new, name) == links
    link_or_copy(name, name)
    assert name.read_text() == "new"


def no_links(*_: object) -> None:
    raise OSError("no hard links here")
