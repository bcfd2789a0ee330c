"""What lies below a folder, while other processes add and remove there."""

import os
from pathlib import Path

from sparsefront.artifacts.durable import below, below_with_links


def test_files_and_folders_of_a_name_at_any_depth(tmp_path):
    (tmp_path / "a" / ".b.leases").mkdir(parents=True)
    for file in ("row.json", "a/row.json", "a/.b.leases/row.json", "a/rows.csv"):
        (tmp_path / file).touch()
    for pattern in ("row.json", ".*.leases", "*.csv", "nothing"):
        assert sorted(below(tmp_path, pattern)) == sorted(tmp_path.rglob(pattern))
    assert not list(below(tmp_path / "no such folder", "*"))


def test_a_folder_that_vanishes_meanwhile_is_passed_over(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    (tmp_path / "row.json").touch()
    list_folder = os.scandir

    def scandir(path):
        if Path(path).name == "gone":
            raise FileNotFoundError(path)
        return list_folder(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert list(below(tmp_path, "row.json")) == [tmp_path / "row.json"]


def test_linked_folders_are_looked_through_once_and_under_their_own_place_where_they_have_one(tmp_path):
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
