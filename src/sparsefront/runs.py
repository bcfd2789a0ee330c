"""Runs of the program from Python, and what a finished one left."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from omegaconf import OmegaConf
from torch import nn

from sparsefront.errors import InvalidSetting
from sparsefront.library.export import load
from sparsefront.library.masks import Masks
from sparsefront.report.result import Result
from sparsefront.run_folder import LINK, PATH_FILE, RESULT_FILE
from sparsefront.settings import build_settings

CONFIG_DIR = Path(__file__).resolve().parents[2] / "conf"  # of the repository that this package is installed from


@dataclass(frozen=True)
class FinishedRun:
    """What a run left.

    Args:
        folder: of its results.
        record: its result; None where `stages` ended before the report.
    """

    folder: Path
    record: Result | None

    @cached_property
    def network(self) -> nn.Module:
        """The pruned network with its final weights, fp32, on the CPU, in eval mode.

        Raises:
            InvalidSetting: the run pruned nothing, or its checkpoint was removed since.
        """
        return self._loaded[0]

    @cached_property
    def masks(self) -> Masks:
        """Its masks. Raises as `network`."""
        return self._loaded[1]

    @cached_property
    def _loaded(self) -> tuple[nn.Module, Masks]:
        import sparsefront.config  # noqa: F401  (registers the resolvers of the configuration)

        checkpoint = linked_checkpoint(self.folder)
        if checkpoint is None:
            allowed = "holds no checkpoint: the run pruned nothing, or its checkpoint was removed since"
            raise InvalidSetting("run_folder", self.folder, allowed)
        config = OmegaConf.load(self.folder / ".hydra" / "config.yaml")
        model, dataset = build_settings("model", config.model), build_settings("dataset", config.dataset)
        with torch.random.fork_rng(devices=[]):  # what is drawn is overwritten
            net = model.architecture(dataset.info, checkpoint)
        return net.eval(), load(checkpoint, net)


def run(*overrides: str, config_dir: Path | str = CONFIG_DIR) -> FinishedRun:
    """Compose a configuration and run it in this process, as `python run.py OVERRIDES` does.

    Args:
        overrides: Hydra's, such as "pattern=n_m", "sparsity=0.5"; one run, no sweep.
        config_dir: the folder of the configuration, conf/ of the repository.
    Returns:
        its record, and on demand its network and masks.
    Raises:
        InvalidSetting: a configuration that cannot be composed or cannot work; names the key, its value and what is allowed.
    """
    from sparsefront.composing import run_overrides

    directory = Path(config_dir).absolute()
    if not (directory / "config.yaml").is_file():
        raise InvalidSetting("config_dir", config_dir, "must be the folder conf/ of sparsefront's repository")
    if odd := [given for given in overrides if not isinstance(given, str)]:
        raise InvalidSetting("overrides", odd[0], 'are texts such as "pattern=n_m"')
    return load_run(run_overrides(overrides, directory))


def load_run(run_folder: Path | str) -> FinishedRun:
    """A finished run: `record`, and read when they are asked for `network` and `masks`.

    Args:
        run_folder: what the run wrote below `results_dir`.
    Raises:
        InvalidSetting: no finished run in this folder.
    """
    folder = Path(run_folder)
    file = folder / RESULT_FILE
    if not file.is_file() and not (folder / ".hydra").is_dir():
        raise InvalidSetting("run_folder", run_folder, f"holds no run: {RESULT_FILE} is missing")
    return FinishedRun(folder, Result.from_json(file.read_text()) if file.is_file() else None)


def linked_checkpoint(folder: Path) -> Path | None:
    """The folder of the run's export; None where it is not there."""
    link, written = folder / LINK, folder / PATH_FILE
    path = Path(written.read_text().strip()) if written.is_file() else link
    return path if path.is_dir() else None
