"""Files of several users follow the umask, and a folder that is closed is named.

A second name for a file takes the place of what was there, and is never written through.

What lies below a folder, while other processes add and remove there.
"""

import os
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from sparsefront.artifacts import durable
from sparsefront.artifacts.durable import below_with_links, link_or_copy, require_readable, save_tensors
from sparsefront.errors import Obstacle


@pytest.fixture
def umask():
    """umask(value) sets it for the test."""
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)


@pytest.mark.parametrize("mask", [0o002, 0o022, 0o027, 0o077])
def test_tensors_follow_the_umask(tmp_path, umask, mask):
    umask(mask)
    file = tmp_path / "weights.safetensors"
    save_tensors(file, {"weight": torch.ones(3)}, {"format": "pt"})
    assert file.stat().st_mode & 0o777 == 0o666 & ~mask
    assert torch.equal(load_file(file)["weight"], torch.ones(3))
    with safe_open(file, framework="pt") as stored:
        assert stored.metadata() == {"format": "pt"}


def test_closed_parent_folder_is_named(tmp_path, monkeypatch):
    above, inside = tmp_path / "above", tmp_path / "above" / "stage"
    inside.mkdir(parents=True)
    monkeypatch.setattr(durable.os, "access", lambda path, wanted: Path(path) != above)
    with pytest.raises(
        Obstacle, match=rf"^{inside}: cannot be read, since {above} belongs .*`chmod a\+rx {above}` by "
    ):
        require_readable(inside, otherwise="name another cache_dir")


@pytest.mark.parametrize("links", [True, False], ids=["hard links", "no hard links"])
def test_second_name_replaces_the_first(tmp_path, monkeypatch, links):
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


def test_linked_folders_are_read_once(tmp_path):
    store, other = tmp_path / "store", tmp_path / "other"
    for folder in (store / "z" / "run", other / "deep" / "run", other / "cached"):
        folder.mkdir(parents=True)
        (folder / "row.json").touch()
    (store / "a").symlink_to(store / "z")  # met before its own place
    (store / "machine").symlink_to(other / "deep")
    (other / "deep" / "back").symlink_to(store)
    (store / "itself").symlink_to(store / "itself")
    (store / "z" / "checkpoint").symlink_to(other / "cached")
    found = sorted(below_with_links(store, ["row.json"], but="checkpoint"))
    assert found == [store / "machine" / "run" / "row.json", store / "z" / "run" / "row.json"]
    assert not list(below_with_links(tmp_path / "no such folder", ["row.json"], but=""))
