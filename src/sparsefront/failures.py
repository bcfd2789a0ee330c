"""What stops a run from outside of it (a full disk, a missing package, too little memory), told in one line."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from sparsefront.artifacts.access import denied
from sparsefront.artifacts.disk_space import free_bytes, fullest, in_units
from sparsefront.errors import InvalidSetting, Obstacle, first_line
from sparsefront.packages import missing_package


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
    folder = fullest(error, [Path(config.cache_dir), output_dir])
    if folder is not None:
        return _full_disk(folder)
    if isinstance(error, ModuleNotFoundError):
        return missing_package(error)
    if isinstance(error, PermissionError) and error.filename is not None:
        return denied(error, otherwise="name another cache_dir or results_dir")
    if type(error).__name__ == "OutOfMemoryError":  # torch's; its name alone, so that no import is needed
        remedy = "lower recipe.batch_size (trainer.accumulate_grad_batches makes up for it) or measure.batch_size"
        return Obstacle("memory of the GPU", None, f"{str(error).partition('. ')[0]}: {remedy}")
    return _of_a_loader(error)


def _full_disk(folder: Path) -> InvalidSetting:
    remedy = "free some, or name folders on another disk with cache_dir and results_dir; the same command then goes on"
    return Obstacle(str(folder), None, f"the disk is full ({in_units(free_bytes(folder))} free now): {remedy}")


def _of_a_loader(error: Exception) -> InvalidSetting | None:
    """A worker process of a data loader hands its complaint over as text, at the end of its own stack trace."""
    if not str(error).startswith("Caught InvalidSetting in DataLoader worker"):
        return None
    found = re.search(r"\.InvalidSetting: ([\w.]+)=(.*?): (.*)", str(error))
    return found and InvalidSetting(*found.groups())
