"""What lies below a folder, while other processes add and remove there."""

import os
from pathlib import Path

from sparsefront.artifacts.walk import below


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
