"""Failures that a user can fix are one line; bugs keep their stack trace."""

import errno
import os
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from sparsefront.artifacts import durable, lease
from sparsefront.artifacts.lease import require_all
from sparsefront.config.command_line import BadInput, job, report_errors_briefly
from sparsefront.errors import InvalidSetting, NoRoom


def output_dir() -> Path:
    return Path(HydraConfig.get().runtime.output_dir)


def told(error: BaseException, composed) -> str:
    config = composed()
    with pytest.raises(InvalidSetting) as caught, report_errors_briefly(config, output_dir()):
        raise error
    assert caught.value.__cause__ is error
    assert "\n" not in str(caught.value)
    return str(caught.value)


def no_space(name: str | None = None) -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)


@pytest.fixture
def disks(tmp_path, monkeypatch):
    """disks(cache=bytes, results=bytes, tmp=bytes): as if these folders lay on disks of their own with so much free."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))

    def make(**free: int) -> None:
        def disk_of(place: Path) -> str:
            below = Path(place).relative_to(tmp_path).parts if Path(place).is_relative_to(tmp_path) else ()
            return below[0] if below and below[0] in free else "another"

        for name in free:
            (tmp_path / name).mkdir(exist_ok=True)
        usage = {name: SimpleNamespace(free=size) for name, size in free.items()} | {
            "another": SimpleNamespace(free=10**12)
        }
        monkeypatch.setattr(durable.shutil, "disk_usage", lambda place: usage[disk_of(place)])
        monkeypatch.setattr(durable, "_disk", disk_of)

    return make


@pytest.mark.parametrize(("folder", "setting"), [("cache", "cache_dir"), ("results/1", "results_dir")])
def test_a_full_disk_names_the_folder_what_is_free_and_the_setting(composed, tmp_path, folder, setting):
    composed()
    (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    message = told(no_space(str(tmp_path / folder / "weights.safetensors")), composed)
    assert message.startswith(f"{tmp_path / folder}: the disk is full (")
    remedy = f"free some, or name a folder on another disk with {setting}; the same command then goes on"
    assert message.endswith(f" free now): {remedy}")


@pytest.mark.parametrize(
    ("full", "folder", "setting"),
    [("cache", "cache", "cache_dir"), ("results", "results/1", "results_dir"), ("tmp", "tmp", "TMPDIR")],
)
def test_a_full_disk_without_a_name_is_the_one_that_is_full(composed, disks, tmp_path, full, folder, setting):
    disks(**{"cache": 5_000_000, "results": 5_000_000, "tmp": 5_000_000} | {full: 12_300})
    message = told(no_space(), composed)
    assert message.startswith(f"{tmp_path / folder}: the disk is full (12.3 kB free now)")
    assert f"with {setting}; the same command" in message


def test_what_libraries_keep_may_fill_a_disk_of_its_own(composed, disks, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "generated"))
    disks(cache=10**9, results=10**9, tmp=10**9, generated=0)
    message = told(no_space(), composed)
    assert message.startswith(f"{tmp_path / 'generated'}: ") and "with TORCHINDUCTOR_CACHE_DIR; " in message


@pytest.mark.parametrize("text", ["I/O error: No space left on device (os error 28)", "code: 28, kind: StorageFull"])
def test_a_library_that_says_so_in_its_own_words(composed, disks, text):
    disks(cache=0)
    assert "the disk is full" in told(RuntimeError(text), composed)


def test_an_error_that_a_full_disk_led_to(composed, disks):
    disks(cache=0)
    error = RuntimeError("could not store")
    error.__cause__ = no_space()
    assert "the disk is full" in told(error, composed)


def test_torch_only_says_that_writing_failed(composed, monkeypatch):
    error = RuntimeError("PytorchStreamWriter failed writing file data/0: file write failed")
    monkeypatch.setattr(durable.shutil, "disk_usage", lambda place: SimpleNamespace(free=4096))
    assert "the disk is full (4.1 kB free now)" in told(error, composed)
    monkeypatch.setattr(durable.shutil, "disk_usage", lambda place: SimpleNamespace(free=10**12))
    with pytest.raises(RuntimeError, match="PytorchStreamWriter"), report_errors_briefly(composed(), output_dir()):
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
    with pytest.raises(type(error)) as caught, report_errors_briefly(composed(), output_dir()):
        raise error
    assert caught.value is error


@pytest.mark.parametrize(
    ("error", "passing"),
    [
        (no_space(), True),
        (NoRoom("cache_dir", "cache", "2 kB free"), True),
        (InvalidSetting("seed", -1, "from 0"), False),
    ],
    ids=["full disk", "no room for what comes", "bad input"],
)
def test_a_job_tells_whether_the_same_run_may_work_later(composed, error, passing):
    config = composed()
    with pytest.raises(BadInput) as caught, job(), report_errors_briefly(config, output_dir()):
        raise error
    assert caught.value.passing is passing and caught.value.exit().passing is passing


def test_a_run_that_slept_and_was_followed_says_so_and_leaves_the_folder_to_its_successor(composed):
    config, directory = composed(), output_dir()
    with pytest.raises(BadInput, match="^this run: .*another process took over; the same command shows") as caught:
        with job(), report_errors_briefly(config, directory):
            (file,) = directory.glob(".running/*")
            file.rename(file.with_name(f"alone.{lease.process_tag()}.successor"))
            require_all()
    assert caught.value.passing and not (directory / "failure.json").exists()
    assert [file.name.rpartition(".")[2] for file in directory.glob(".running/*")] == ["successor"]
