"""Room is asked for before it is used, and a disk that is full is told from those that are not."""

import errno
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors import SafetensorError
from whole_calls import get_or_make

from sparsefront.artifacts import durable
from sparsefront.artifacts.durable import (
    full_disk,
    in_units,
    noting_free_space,
    require_space,
    save_tensors,
    whole_file,
)
from sparsefront.artifacts.store import ArtifactStore
from sparsefront.errors import InvalidSetting


@pytest.fixture
def two_megabytes(monkeypatch):
    monkeypatch.setattr(durable.shutil, "disk_usage", lambda place: SimpleNamespace(free=2_000_000))


def test_too_little_room_names_path_free_and_needed(two_megabytes, tmp_path):
    folder = tmp_path / "not" / "there" / "yet"
    with pytest.raises(InvalidSetting) as rejected:
        require_space(folder, 3_456_789, key="cache_dir", what="this training", remedy="or train less")
    assert str(rejected.value) == (
        f"cache_dir={folder}: 2 MB free where this training writes 3.46 MB: free some, name a folder on another disk "
        "or train less"
    )
    assert rejected.value.passing and rejected.value.within("measure").passing, "the same run may have room later"


def test_enough_room(two_megabytes, tmp_path):
    require_space(tmp_path / "later", 2_000_000, key="cache_dir", what="this training")


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 kB"), (20_480, "20.5 kB"), (1_250_000, "1.25 MB"), (3_200_000_000, "3.2 GB")]
)
def test_units(size, text):
    assert in_units(size) == text


CACHE, RESULTS, TMP = Path("/disk1/cache"), Path("/disk2/results"), Path("/disk3/tmp")
SETTINGS = {CACHE: "cache_dir", RESULTS: "results_dir", TMP: "TMPDIR"}


@pytest.fixture
def free(monkeypatch):
    """Folder -> what its disk has left, to be changed."""
    left = dict.fromkeys(SETTINGS, 10**9)
    monkeypatch.setattr(durable, "_disk", lambda folder: folder.parts[1])
    monkeypatch.setattr(durable, "_there", lambda folder: folder)
    by_disk = {folder.parts[1]: folder for folder in SETTINGS}
    monkeypatch.setattr(
        durable.shutil, "disk_usage", lambda place: SimpleNamespace(free=left[by_disk[Path(place).parts[1]]])
    )
    return left


def no_space(*names: object) -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), *names)


def test_a_disk_from_which_the_half_written_was_removed_is_still_the_one(free):
    """A smaller disk has less room by the time that the error is looked at."""
    free[TMP] = 10**7
    free[CACHE] = 0
    with pytest.raises(OSError) as caught, noting_free_space(CACHE / "dense"):
        raise no_space()
    free[CACHE] = 10**9
    assert str(full_disk(caught.value, SETTINGS)).startswith(f"{CACHE}: the disk is full (1 GB free now): ")
    assert str(full_disk(no_space(), SETTINGS)).startswith(f"{TMP}: ")


def test_where_nothing_says_which_disk_was_full_all_are_told(free):
    said = str(full_disk(no_space(), SETTINGS))
    assert said.startswith(
        "disk: one was full, and nothing says which; free now: 1 GB at /disk1/cache (cache_dir), 1 GB"
    )
    assert "1 GB at /disk3/tmp (TMPDIR): free some where it was" in said


def test_of_a_copy_the_disk_that_it_goes_to_is_full(free):
    assert str(full_disk(no_space(str(CACHE / "a"), None, str(RESULTS / "b")), SETTINGS)).startswith(f"{RESULTS}: ")


def test_a_file_by_its_place_in_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cache").mkdir()
    said = str(full_disk(no_space("cache/weights"), {tmp_path / "cache": "cache_dir", Path("/tmp"): "TMPDIR"}))
    assert said.startswith(f"{tmp_path / 'cache'}: ") and "with cache_dir;" in said


def test_the_error_below_may_be_the_one_that_names_the_file(free):
    free[TMP] = 0
    outer = RuntimeError("I/O error: No space left on device")
    outer.__cause__ = no_space(str(RESULTS / "events.csv"))
    assert str(full_disk(outer, SETTINGS)).startswith(f"{RESULTS}: ")


def test_of_settings_on_one_disk_each_is_named(free, monkeypatch):
    monkeypatch.setattr(durable, "_disk", lambda folder: folder.parts[1] == "disk3")
    free[CACHE] = free[RESULTS] = 0
    assert "with cache_dir or results_dir; the same" in str(full_disk(no_space(), SETTINGS))


def test_an_error_of_another_kind_is_no_full_disk(free):
    assert full_disk(OSError(errno.EACCES, "Permission denied"), SETTINGS) is None


def test_the_store_and_files_note_what_was_free(free, tmp_path, monkeypatch):
    monkeypatch.setattr(durable, "_disk", lambda folder: folder)
    monkeypatch.setattr(durable, "free_bytes", lambda folder: 4096)

    def fail(folder: Path) -> None:
        raise no_space()

    with pytest.raises(OSError) as caught:
        get_or_make(ArtifactStore(tmp_path, reuse=True, runnable=("dense",)), "dense", {}, fail)
    assert getattr(caught.value, durable.NOTED) == {tmp_path / "dense": 4096}
    with pytest.raises(OSError) as caught, whole_file(tmp_path / "rows.csv"):
        raise no_space()
    assert getattr(caught.value, durable.NOTED) == {tmp_path: 4096}


def test_tensors_that_do_not_fit_name_their_file(tmp_path, monkeypatch):
    """safetensors says only that there was no space."""

    def fail(*_: object, **__: object) -> None:
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("safetensors.torch.save_file", fail)
    with pytest.raises(OSError) as caught:
        save_tensors(tmp_path / "weights", {"weight": torch.ones(1)})
    assert caught.value.errno == errno.ENOSPC and caught.value.filename == str(tmp_path / "weights")
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_a_small_disk_that_is_really_full(tmp_path):
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
