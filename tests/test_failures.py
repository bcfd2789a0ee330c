"""Failures that a user can fix are one line; bugs keep their stack trace."""

import errno
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from sparsefront.artifacts import disk_space
from sparsefront.errors import InvalidSetting
from sparsefront.failures import in_one_line


def output_dir() -> Path:
    return Path(HydraConfig.get().runtime.output_dir)


def told(error: BaseException, composed) -> str:
    config = composed()
    with pytest.raises(InvalidSetting) as caught, in_one_line(config, output_dir()):
        raise error
    assert caught.value.__cause__ is error
    assert "\n" not in str(caught.value)
    return str(caught.value)


def no_space(name: str | None = None) -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)


def test_a_full_disk_names_the_folder_what_is_free_and_what_to_do(composed, tmp_path):
    message = told(no_space(str(tmp_path / "cache" / "weights.safetensors")), composed)
    assert message.startswith(f"{tmp_path / 'cache'}: the disk is full (")
    assert " free now): free some, or name folders on another disk with cache_dir and results_dir" in message


def test_a_full_disk_without_a_name_is_the_fullest_of_those_that_a_run_writes_to(composed, tmp_path, monkeypatch):
    free = {tmp_path / "cache": 12_300, tmp_path / "results" / "1": 5_000_000_000}

    def usage(place):
        found = [size for folder, size in free.items() if folder in (place, *place.parents)]
        return SimpleNamespace(free=found[0] if found else 10**12)

    monkeypatch.setattr(disk_space.shutil, "disk_usage", usage)
    (tmp_path / "cache").mkdir()
    assert told(no_space(), composed).startswith(f"{tmp_path / 'cache'}: the disk is full (12.3 kB free now)")


@pytest.mark.parametrize("text", ["I/O error: No space left on device (os error 28)", "code: 28, kind: StorageFull"])
def test_a_library_that_says_so_in_its_own_words(composed, text):
    assert "the disk is full" in told(RuntimeError(text), composed)


def test_an_error_that_a_full_disk_led_to(composed):
    error = RuntimeError("could not store")
    error.__cause__ = no_space()
    assert "the disk is full" in told(error, composed)


def test_torch_only_says_that_writing_failed(composed, monkeypatch):
    error = RuntimeError("PytorchStreamWriter failed writing file data/0: file write failed")
    monkeypatch.setattr(disk_space.shutil, "disk_usage", lambda place: SimpleNamespace(free=4096))
    assert "the disk is full (4.1 kB free now)" in told(error, composed)
    monkeypatch.setattr(disk_space.shutil, "disk_usage", lambda place: SimpleNamespace(free=10**12))
    with pytest.raises(RuntimeError, match="PytorchStreamWriter"), in_one_line(composed(), output_dir()):
        raise error


def test_a_missing_package_is_told_with_what_installs_it(composed):
    assert told(ModuleNotFoundError("No module", name="sklearn.datasets"), composed) == (
        "Python package scikit-learn: is not installed: pip install scikit-learn"
    )


def test_a_root_key_that_cannot_be_resolved(composed):
    with pytest.raises(OmegaConfBaseException) as unresolved:
        OmegaConf.create({"sparsity": "${nowhere}"}).sparsity  # noqa: B018
    assert told(unresolved.value, composed) == "sparsity: Interpolation key 'nowhere' not found"


def test_a_file_that_may_not_be_read(composed):
    error = PermissionError(errno.EACCES, "Permission denied", "/data/train.tsv")
    assert told(error, composed) == (
        "/data/train.tsv: Permission denied: make it readable and writable for you, or name another cache_dir or results_dir"
    )


def test_too_little_memory_on_the_gpu(composed):
    import torch

    error = torch.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 139 GiB"
    )
    assert told(error, composed).startswith("memory of the GPU: CUDA out of memory: lower recipe.batch_size")


def test_what_a_worker_of_a_loader_found(composed):
    import torch

    with pytest.raises(RuntimeError) as caught:
        next(iter(torch.utils.data.DataLoader(Broken(), batch_size=1, num_workers=1)))
    assert (
        told(caught.value, composed)
        == "dataset.path=/data/cat/3.png: cannot be read as an image (a = b: c); replace it"
    )


class Broken:
    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> None:
        raise InvalidSetting("dataset.path", "/data/cat/3.png", "cannot be read as an image (a = b: c); replace it")


@pytest.mark.parametrize(
    "error",
    [ValueError("a bug"), KeyError("layer"), ModuleNotFoundError("ours", name="sparsefront.gone"), OSError(5, "io")],
)
def test_bugs_keep_their_stack_trace(composed, error):
    with pytest.raises(type(error)) as caught, in_one_line(composed(), output_dir()):
        raise error
    assert caught.value is error
