"""A row tells which code made it and where it ran."""

import re
import subprocess

import pytest
import torch

from sparsefront import provenance


@pytest.fixture(autouse=True)
def fresh():
    provenance._commit.cache_clear()
    yield
    provenance._commit.cache_clear()


def test_commit_of_the_checkout(monkeypatch):
    monkeypatch.delenv("SPARSEFRONT_COMMIT", raising=False)
    found = provenance.provenance(torch.device("cpu"))
    assert found.commit is None or re.fullmatch(r"[0-9a-f]{40}(-dirty)?", found.commit)
    assert found.gpu is found.driver is found.cuda is None
    assert found.torch_version == torch.__version__


def test_commit_of_a_copy(monkeypatch):
    monkeypatch.setenv("SPARSEFRONT_COMMIT", "0" * 40)
    assert provenance.provenance(torch.device("cpu")).commit == "0" * 40


def test_without_git_or_driver_nothing_is_claimed(monkeypatch):
    monkeypatch.delenv("SPARSEFRONT_COMMIT", raising=False)

    def missing(*arguments, **options):
        raise FileNotFoundError(arguments[0][0])

    monkeypatch.setattr(subprocess, "run", missing)
    assert provenance.provenance(torch.device("cpu")).commit is None
    assert provenance.gpu_clock_mhz(torch.device("cuda")) is None
