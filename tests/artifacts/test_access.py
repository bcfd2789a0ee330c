"""A cache of several users: files follow the umask, and what another one keeps to themselves is told in one line."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest
import torch
from other_users import said_without_privileges
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from whole_calls import get_or_make

from sparsefront.artifacts import durable
from sparsefront.artifacts.durable import denied, require_readable, save_tensors, unreadable
from sparsefront.artifacts.store import ArtifactStore
from sparsefront.errors import Obstacle

OTHER_USER = 12345


def store(root: Path) -> ArtifactStore:
    return ArtifactStore(root, reuse=True, runnable=("dense",))


def write(folder: Path) -> None:
    (folder / "inner").mkdir()
    (folder / "inner" / "content.txt").write_text("content")


@pytest.fixture
def umask():
    """umask(value) sets it for the test."""
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)


@pytest.mark.parametrize("mask", [0o002, 0o022, 0o027, 0o077])
def test_tensors_are_readable_for_whom_the_umask_lets(tmp_path, umask, mask):
    umask(mask)
    file = tmp_path / "weights.safetensors"
    save_tensors(file, {"weight": torch.ones(3)}, {"format": "pt"})
    assert file.stat().st_mode & 0o777 == 0o666 & ~mask
    assert torch.equal(load_file(file)["weight"], torch.ones(3))
    with safe_open(file, framework="pt") as stored:
        assert stored.metadata() == {"format": "pt"}


def test_tensors_replace_a_file_and_are_not_written_through_its_other_name(tmp_path, umask):
    old, other = tmp_path / "old", tmp_path / "other"
    save_file({"weight": torch.zeros(1)}, old)  # of an earlier version, its owner's alone
    os.link(old, other)
    save_tensors(old, {"weight": torch.ones(1)})
    assert load_file(other)["weight"] == 0 and load_file(old)["weight"] == 1 and old.stat().st_mode & 0o777 == 0o644


def test_tensors_that_cannot_be_written_leave_no_file(tmp_path):
    shared = torch.ones(4)
    with pytest.raises(RuntimeError, match="share memory"):
        save_tensors(tmp_path / "weights", {"one": shared, "other": shared})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("part", ["", "inner", "inner/content.txt"], ids=["stage", "folder in it", "file in it"])
def test_a_stage_of_another_user_is_told_with_its_owner_and_the_remedy(tmp_path, part):
    made = get_or_make(store(tmp_path), "dense", {}, write).path
    closed = made / part
    closed.chmod(0)
    remedy = f"`chmod -R a+rX {made}` by {durable._name(os.geteuid())} shares it; or name another cache_dir"

    def finds() -> str:
        with pytest.raises(Obstacle) as told:
            get_or_make(store(tmp_path), "dense", {}, write)
        return str(told.value)

    try:
        said = said_without_privileges(finds)
    finally:
        closed.chmod(0o755)
    which = "it" if closed == made else closed
    assert (
        said
        == f"{made}: cannot be read, since {which} belongs to {durable._name(os.geteuid())} with mode 000: {remedy}"
    )
    assert store(tmp_path).find("dense", {}).reused, "nothing of it was touched"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_a_process_of_another_user():
    folder = Path(tempfile.mkdtemp(prefix="cache-"))  # tmp_path lies in a folder of this user alone
    try:
        folder.chmod(0o755)
        made = get_or_make(store(folder), "dense", {}, write).path

        def finds() -> str:
            try:
                return (store(folder).find("dense", {}).path / "inner" / "content.txt").read_text()
            except Obstacle as told:
                return str(told)

        assert said_without_privileges(finds, OTHER_USER) == "content"
        made.chmod(0o700)
        said = said_without_privileges(finds, OTHER_USER)
        assert said.startswith(f"{made}: cannot be read, since it belongs to {durable._name(0)} with mode 700: ")
    finally:
        shutil.rmtree(folder)


def test_a_folder_above_that_is_closed_is_the_one_that_its_owner_must_open(tmp_path, monkeypatch):
    above, inside = tmp_path / "above", tmp_path / "above" / "stage"
    inside.mkdir(parents=True)
    monkeypatch.setattr(durable.os, "access", lambda path, wanted: Path(path) != above)
    with pytest.raises(
        Obstacle, match=rf"^{inside}: cannot be read, since {above} belongs .*`chmod a\+rx {above}` by "
    ):
        require_readable(inside, otherwise="name another cache_dir")


def test_what_may_be_read_and_what_is_not_there_are_no_obstacle(tmp_path):
    assert unreadable(tmp_path, otherwise="") is None
    assert unreadable(tmp_path / "nowhere" / "stage", otherwise="") is None


def test_an_error_about_what_may_be_read_but_not_written(tmp_path):
    error = PermissionError(13, "Permission denied", str(tmp_path))
    told = str(denied(error, otherwise="name another cache_dir"))
    assert told == f"{tmp_path}: Permission denied: make it readable and writable for you, or name another cache_dir"
