"""A run's folder leads to its export, also after the project was moved, and where links cannot be made."""

import shutil
from pathlib import Path

import pytest

from sparsefront.results.run_folder import link_checkpoint


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A working directory with an export and the folder of a run."""
    root = tmp_path / "project"
    (root / ".cache" / "export" / "key").mkdir(parents=True)
    (root / "results" / "run").mkdir(parents=True)
    monkeypatch.chdir(root)
    return root


def test_the_link_survives_a_move_of_the_project(project, tmp_path):
    assert link_checkpoint(Path(".cache/export/key"), Path("results/run").resolve()) == ".cache/export/key"
    shutil.move(project, tmp_path / "moved")
    (tmp_path / "moved" / ".cache" / "export" / "key" / "manifest.json").write_text("{}")
    assert (tmp_path / "moved" / "results" / "run" / "checkpoint" / "manifest.json").read_text() == "{}"


def test_a_cache_elsewhere_is_linked_by_its_whole_path(project, tmp_path):
    elsewhere = tmp_path / "disk" / "export" / "key"
    elsewhere.mkdir(parents=True)
    link_checkpoint(elsewhere, project / "results" / "run")
    assert (project / "results" / "run" / "checkpoint").readlink() == elsewhere


def test_without_links_a_file_holds_the_path(project, monkeypatch):
    def reject(*_, **__):
        raise OSError("links are not supported")

    monkeypatch.setattr(Path, "symlink_to", reject)
    link_checkpoint(Path(".cache/export/key"), project / "results" / "run")
    text = (project / "results" / "run" / "checkpoint.txt").read_text()
    assert Path(text.strip()).samefile(project / ".cache" / "export" / "key")


def test_an_export_that_was_removed_is_not_linked(project):
    told = link_checkpoint(Path(".cache/export/gone"), project / "results")
    assert told.startswith("not stored any more (.cache/export/gone)")
    assert not list((project / "results").glob("checkpoint*"))
