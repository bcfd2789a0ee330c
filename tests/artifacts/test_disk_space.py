"""Room is asked for before it is used, and a disk that is full is told from those that are not."""

import errno
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from sparsefront.artifacts import durable
from sparsefront.artifacts.durable import full_disk, require_space, save_tensors, whole_file
from sparsefront.errors import InvalidSetting


@pytest.fixture
def two_megabytes(monkeypatch):
    monkeypatch.setattr(durable.shutil, "disk_usage", lambda place: SimpleNamespace(free=2_000_000))


def test_too_little_room_is_named(two_megabytes, tmp_path):
    folder = tmp_path / "not" / "there" / "yet"
    with pytest.raises(InvalidSetting) as rejected:
        require_space(folder, 3_456_789, key="cache_dir", what="this training", remedy="or train less")
    assert str(rejected.value) == (
        f"cache_dir={folder}: 2 MB free where this training writes 3.46 MB: free some, name a folder on another disk "
        "or train less"
    )
    assert rejected.value.passing and rejected.value.within("measure").passing, "the same run may have room later"


CACHE, RESULTS, TMP = Path("/disk1/cache"), Path("/disk2/results"), Path("/disk3/tmp")
SETTINGS = {CACHE: "cache_dir", RESULTS: "results_dir", TMP: "TMPDIR"}


@pytest.fixture
def free(monkeypatch):
    """Folder -> what its disk has left, to be changed."""
    left = {folder: count * 10**9 for count, folder in enumerate(SETTINGS, start=1)}
    monkeypatch.setattr(durable, "_existing", lambda folder: folder)
    by_disk = {folder.parts[1]: folder for folder in SETTINGS}
    monkeypatch.setattr(
        durable.shutil, "disk_usage", lambda place: SimpleNamespace(free=left[by_disk[Path(place).parts[1]]])
    )
    return left


def no_space(*names: object) -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), *names)


def test_unknown_full_disk_is_the_fullest(free):
    text = str(full_disk(no_space(), SETTINGS))
    assert text.startswith(f"{CACHE}: the disk is full (1 GB free now)") and "with cache_dir;" in text


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_small_full_disk(tmp_path):
    small, large = tmp_path / "small", tmp_path / "large"
    for folder in (small, large):
        folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", small], capture_output=True).returncode:
        pytest.skip("nothing may be mounted here")
    settings = {large: "results_dir", small: "cache_dir"}
    try:
        with pytest.raises(OSError) as tensors:
            save_tensors(small / "weights", {"weight": torch.ones(2**20)})
        with pytest.raises(OSError) as text, whole_file(small / "page.html") as file:
            file.write_text("x" * 2**20)
        said = [str(full_disk(caught.value, settings)) for caught in (tensors, text)]
    finally:
        subprocess.run(["umount", small], check=True)
    assert all(one.startswith(f"{small}: the disk is full (") and "with cache_dir;" in one for one in said), said
