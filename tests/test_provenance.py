"""A measurement tells which code made it, when and where."""

import re
import subprocess
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
import torch

from sparsefront import provenance

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def fresh():
    provenance.code_commit.cache_clear()
    provenance.processor_name.cache_clear()
    yield
    provenance.code_commit.cache_clear()
    provenance.processor_name.cache_clear()


def test_commit_of_the_checkout(monkeypatch):
    monkeypatch.delenv("SPARSEFRONT_COMMIT", raising=False)
    found = provenance.provenance(CPU)
    assert found.commit is None or re.fullmatch(r"[0-9a-f]{40}(-dirty)?", found.commit)
    assert found.gpu is found.driver is found.cuda is None
    assert found.torch_version == torch.__version__
    assert abs((datetime.now(UTC) - datetime.fromisoformat(found.time)).total_seconds()) < 60


def test_repository_around_the_package(monkeypatch, tmp_path):
    monkeypatch.delenv("SPARSEFRONT_COMMIT", raising=False)
    package = tmp_path / ".venv" / "sparsefront"
    package.mkdir(parents=True)
    monkeypatch.setattr(provenance, "__file__", str(package / "provenance.py"))
    (package / "provenance.py").touch()
    (tmp_path / ".gitignore").write_text(".venv\n")
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "-m", "theirs"]):
        subprocess.run([*git, *words], check=True)
    assert provenance.code_commit() is None
    subprocess.run([*git, "add", "--force", str(package)], check=True)
    provenance.code_commit.cache_clear()
    assert provenance.code_commit().endswith("-dirty"), "a checkout that holds it, changed"


def test_provenance_without_git(monkeypatch):
    monkeypatch.delenv("SPARSEFRONT_COMMIT", raising=False)

    def missing(*arguments, **options):
        raise FileNotFoundError(arguments[0][0])

    monkeypatch.setattr(subprocess, "run", missing)
    monkeypatch.setattr(subprocess, "Popen", missing)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "H200")
    address = SimpleNamespace(pci_domain_id=0, pci_bus_id=1, pci_device_id=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: address)
    assert provenance.provenance(CPU).commit is None
    on_gpu = provenance.provenance(torch.device("cuda"))
    assert on_gpu.gpu == "H200" and on_gpu.driver is on_gpu.processor is on_gpu.threads is None
