"""Data of the hub are keyed by the commit, which is asked for once; a stand-in answers in the hub's place."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from huggingface_hub import HfApi, constants
from huggingface_hub.errors import RevisionNotFoundError

from sparsefront.data import download
from sparsefront.data.glue import Glue
from sparsefront.errors import InvalidSetting

datasets = pytest.importorskip("datasets", reason="a machine without the hub's package has no data of the hub")
FIRST, SECOND = "1" * 40, "2" * 40


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> SimpleNamespace:
    """A hub whose branch `main` stands at `commit`; it answers nobody while that is None. The libraries' cache is empty."""
    hub = SimpleNamespace(commit=FIRST, asked=[], cache=tmp_path / "hub")

    def require_reachable(url: str, *, missing: str) -> None:
        if hub.commit is None:
            raise InvalidSetting("path", None, f"no route; {missing}")

    def dataset_info(self: HfApi, hub_id: str, *, revision: str, timeout: float) -> SimpleNamespace:
        hub.asked.append((hub_id, revision))
        if revision != "main":
            raise RevisionNotFoundError("404", response=SimpleNamespace(headers={}, request=None))
        return SimpleNamespace(sha=hub.commit)

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(hub.cache))
    monkeypatch.setattr(download, "require_reachable", require_reachable)
    monkeypatch.setattr(HfApi, "dataset_info", dataset_info)
    return hub


def in_library_cache(hub: SimpleNamespace, commit: str) -> None:
    """As `datasets` leaves its cache."""
    repository = hub.cache / "datasets--nyu-mll--glue"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(commit)
    (repository / "snapshots" / commit).mkdir(parents=True)
    (repository / "snapshots" / commit / "README.md").touch()


def test_commit_of_the_hub(hub: SimpleNamespace, tmp_path: Path):
    settings = Glue().at_commit(tmp_path / "data")
    assert settings.revision == FIRST
    assert settings.fingerprint()["content"] == {"hub": "nyu-mll/glue", "task": "sst2", "revision": FIRST}
    hub.commit = SECOND  # somebody pushed: what lies here stays what it was
    assert Glue().at_commit(tmp_path / "data") == settings
    assert hub.asked == [("nyu-mll/glue", "main")]
    assert Glue().at_commit(tmp_path / "other").fingerprint() != settings.fingerprint()
    hub.commit = None
    assert Glue().at_commit(tmp_path / "data") == settings
    assert settings.at_commit(tmp_path / "new") == settings, "a commit is itself"


def test_commit_of_the_cache(hub: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    hub.commit = None
    with pytest.raises(
        InvalidSetting, match="revision=main: of nyu-mll/glue is unknown here .no route; set .* to a folder"
    ):
        Glue().at_commit(tmp_path / "data")
    in_library_cache(hub, SECOND)
    assert Glue().at_commit(tmp_path / "data").revision == SECOND
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert Glue().at_commit(tmp_path / "elsewhere").revision == SECOND


def test_copy_of_another_revision(monkeypatch: pytest.MonkeyPatch):
    """Where the hub is silent, the library takes the newest copy that it has, whatever it was asked for."""
    rows = SimpleNamespace(cache_files=[{"filename": f"/cache/nyu-mll___glue/sst2/0.0.0/{SECOND}/glue-train.arrow"}])
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: rows)
    split = {"config": "sst2", "split": "train", "missing": "set dataset.path to a folder"}
    assert download.hub_split("nyu-mll/glue", revision=SECOND, **split) is rows
    with pytest.raises(
        InvalidSetting, match=f"revision={FIRST}: .* copy on this machine is of {SECOND}; set dataset.path"
    ):
        download.hub_split("nyu-mll/glue", revision=FIRST, **split)
