"""Room is asked for before it is used."""

from types import SimpleNamespace

import pytest

from sparsefront.artifacts import disk_space
from sparsefront.artifacts.disk_space import in_units, require_space
from sparsefront.errors import InvalidSetting


@pytest.fixture
def two_megabytes(monkeypatch):
    monkeypatch.setattr(disk_space.shutil, "disk_usage", lambda place: SimpleNamespace(free=2_000_000))


def test_too_little_room_names_path_free_and_needed(two_megabytes, tmp_path):
    folder = tmp_path / "not" / "there" / "yet"
    with pytest.raises(InvalidSetting) as rejected:
        require_space(folder, 3_456_789, key="cache_dir", what="this training", remedy="or train less")
    assert str(rejected.value) == (
        f"cache_dir={folder}: 2 MB free where this training writes 3.46 MB: free some, name a folder on another disk "
        "or train less"
    )


def test_enough_room(two_megabytes, tmp_path):
    require_space(tmp_path / "later", 2_000_000, key="cache_dir", what="this training")


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 kB"), (20_480, "20.5 kB"), (1_250_000, "1.25 MB"), (3_200_000_000, "3.2 GB")]
)
def test_units(size, text):
    assert in_units(size) == text
