"""What stops a run from outside of it (a full disk, a missing package, too little memory), told in one line."""

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from sparsefront.artifacts.access import denied
from sparsefront.artifacts.disk_space import full_disk
from sparsefront.artifacts.lease import LeaseLost
from sparsefront.errors import InvalidSetting, Obstacle, PassingObstacle, first_line
from sparsefront.packages import missing_package

# environment variable that moves what libraries and kernels keep on a disk -> where it lies without it; "": in TMPDIR
CACHES = {
    "SPARSEFRONT_GPU_LOCKS": "",
    "SPARSEFRONT_KERNELS_CACHE": "~/.cache/sparsefront_kernels",
    "TORCHINDUCTOR_CACHE_DIR": "",
    "TRITON_CACHE_DIR": "~/.triton/cache",
    "HF_DATASETS_CACHE": "",
    "HF_HOME": "~/.cache/huggingface",
    "TORCH_HOME": "~/.cache/torch",
    "WANDB_CACHE_DIR": "~/.cache/wandb",
}


@contextmanager
def in_one_line(config: DictConfig, output_dir: Path) -> Iterator[None]:
    """Failures that a user can fix leave as `InvalidSetting`; the rest pass with their stack trace, as it is our fault.

    Args:
        config: of the run.
        output_dir: where its results go.
    """
    try:
        yield
    except InvalidSetting:
        raise
    except Exception as error:
        complaint = _complaint(error, config, output_dir)
        if complaint is None:
            raise
        raise complaint from error


def _complaint(error: Exception, config: DictConfig, output_dir: Path) -> InvalidSetting | None:
    if isinstance(error, OmegaConfBaseException):
        return Obstacle(error.full_key or "configuration", None, first_line(error))
    if isinstance(error, LeaseLost):
        return PassingObstacle("this run", None, f"{error}; the same command shows what that one finished")
    if (full := full_disk(error, _written_folders(config, output_dir))) is not None:
        return PassingObstacle(full.key, full.value, full.allowed)
    if isinstance(error, ModuleNotFoundError):
        return missing_package(error)
    if isinstance(error, PermissionError) and error.filename is not None:
        return denied(error, otherwise="name another cache_dir or results_dir")
    if type(error).__name__ == "OutOfMemoryError":  # torch's; its name alone, so that no import is needed
        remedy = "lower recipe.batch_size (trainer.accumulate_grad_batches makes up for it) or measure.batch_size"
        return Obstacle("memory of the GPU", None, f"{str(error).partition('. ')[0]}: {remedy}")
    return _of_a_loader(error)


def _written_folders(config: DictConfig, output_dir: Path) -> dict[Path, str]:
    """Every folder that a run may write to, W&B's lie in its own -> the setting or environment variable that names another."""
    found = {Path(config.cache_dir): "cache_dir", output_dir: "results_dir", Path(config.results_dir): "results_dir"}
    found.setdefault(Path(tempfile.gettempdir()), "TMPDIR")
    for variable, default in CACHES.items():
        folder = os.path.expanduser(os.environ.get(variable) or default)
        if os.path.isdir(folder):
            found.setdefault(Path(folder), variable)
    absolute: dict[Path, str] = {}
    for folder, setting in found.items():
        absolute.setdefault(folder.absolute(), setting)
    return absolute


def _of_a_loader(error: Exception) -> InvalidSetting | None:
    """A worker process of a data loader hands its complaint over as text, at the end of its own stack trace."""
    if not str(error).startswith("Caught InvalidSetting in DataLoader worker"):
        return None
    found = re.search(r"\.InvalidSetting: ([\w.]+)=(.*?): (.*)", str(error))
    return found and InvalidSetting(*found.groups())
