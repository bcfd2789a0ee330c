"""Failures that a user can fix are one line; bugs keep their stack trace."""

import errno
import os
from pathlib import Path

import pytest
from hydra.core.hydra_config import HydraConfig

from sparsefront.artifacts import lease
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


@pytest.mark.parametrize(("folder", "setting"), [("cache", "cache_dir"), ("results/1", "results_dir")])
def test_full_disk_names_folder_and_setting(composed, tmp_path, folder, setting):
    composed()
    (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    message = told(no_space(str(tmp_path / folder / "weights.safetensors")), composed)
    assert message.startswith(f"{tmp_path / folder}: the disk is full (")
    remedy = f"free some, or name a folder on another disk with {setting}; the same command then goes on"
    assert message.endswith(f" free now): {remedy}")


def test_missing_package_names_its_installation(composed):
    assert told(ModuleNotFoundError("No module", name="sklearn.datasets"), composed) == (
        "Python package scikit-learn: is not installed: pip install scikit-learn"
    )


def test_too_little_memory_on_the_gpu(composed):
    import torch

    error = torch.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 139 GiB"
    )
    assert told(error, composed).startswith("memory of the GPU: CUDA out of memory: lower recipe.batch_size")


def test_error_of_a_loader_worker(composed):
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
def test_job_says_whether_failure_passes(composed, error, passing):
    config = composed()
    with pytest.raises(BadInput) as caught, job(), report_errors_briefly(config, output_dir()):
        raise error
    assert caught.value.passing is passing and caught.value.exit().passing is passing


def test_replaced_run_leaves_its_folder(composed):
    config, directory = composed(), output_dir()
    with pytest.raises(BadInput, match="^this run: .*another process took over; the same command shows") as caught:
        with job(), report_errors_briefly(config, directory):
            (file,) = directory.glob(".running/*")
            file.rename(file.with_name(f"alone.{lease.process_tag()}.successor"))
            require_all()
    assert caught.value.passing and not (directory / "failure.json").exists()
    assert [file.name.rpartition(".")[2] for file in directory.glob(".running/*")] == ["successor"]
