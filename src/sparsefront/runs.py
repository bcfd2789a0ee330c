"""Runs of the program from Python, and what a finished one left."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import nn

from sparsefront.artifacts.bounded_files import read_text_bounded
from sparsefront.datasets.base import Dataset
from sparsefront.errors import InvalidSetting, first_line, keys_of
from sparsefront.library.export import load
from sparsefront.library.masks import Masks
from sparsefront.models.base import Model
from sparsefront.patterns.base import Pattern
from sparsefront.patterns.records import modules_of
from sparsefront.recorded import composable_overrides
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
        overrides: of a run of this process all that made it; of another one what replaces or adds to those that it recorded.
        trust: packages besides sparsefront whose classes the run may name; None: this process made it, of any.
    """

    folder: Path
    record: Result | None
    overrides: tuple[str, ...] = ()
    trust: tuple[str, ...] | None = ()

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
        from sparsefront.composing import configured

        checkpoint = linked_checkpoint(self.folder)
        if checkpoint is None:
            allowed = "holds no checkpoint: the run pruned nothing, or its checkpoint was removed since"
            raise InvalidSetting("run_folder", self.folder, allowed)
        with configured(self._composed_of(), CONFIG_DIR) as (config, _):
            model = build_settings("model", config.model, base=Model, trust=self.trust)
            dataset = build_settings("dataset", config.dataset, base=Dataset, trust=self.trust)
            pattern = build_settings("pattern", config.pattern, base=Pattern, trust=self.trust)
        with torch.random.fork_rng(devices=[]), keys_of("dataset"):  # what is drawn is overwritten
            net = model.architecture(dataset.info, checkpoint)
        trust = modules_of(pattern) if self.trust is None else self.trust
        return net.eval(), load(checkpoint, net, trust=sorted(trust))

    def _composed_of(self) -> list[str]:
        """A network that is loaded needs no weights to begin with, and most need no data."""
        if self.trust is None:
            return list(self.overrides)
        return composable_overrides(self.folder, self.overrides, need_paths=False)


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
    folder = run_overrides(overrides, directory)
    return FinishedRun(folder, _record_in(folder), overrides, trust=None)


def load_run(run_folder: Path | str, *overrides: str, trust: Sequence[str] = ()) -> FinishedRun:
    """A finished run: `record`, and read when they are asked for `network` and `masks`. Nothing in its folder runs as code, and
    no path that it recorded is followed.

    Args:
        run_folder: what the run wrote below `results_dir`.
        overrides: what holds here instead of what the run recorded, such as "dataset.path=DIR" for a data set whose folder
            says how many classes there are.
        trust: packages of other people whose classes the run may name, such as ["mylab.patterns"]: importing them runs their
            code.
    Raises:
        InvalidSetting: no finished run in this folder, or one that cannot be read.
    """
    folder = Path(run_folder)
    if not (folder / RESULT_FILE).exists() and not (folder / ".hydra").is_dir():
        raise InvalidSetting("run_folder", run_folder, f"holds no run: {RESULT_FILE} is missing")
    if isinstance(trust, str):
        raise InvalidSetting("trust", trust, 'is a list of packages, such as ["mylab.patterns"]')
    return FinishedRun(folder, _record_in(folder), overrides, tuple(trust))


def _record_in(folder: Path) -> Result | None:
    file = folder / RESULT_FILE
    if not file.exists():
        return None
    try:
        return Result.from_json(read_text_bounded(file))
    except (ValueError, RecursionError) as error:
        raise InvalidSetting("run_folder", folder, f"{RESULT_FILE} cannot be read: {first_line(error)}") from error


def linked_checkpoint(folder: Path) -> Path | None:
    """The folder of the run's export; None where it is not there."""
    link, written = folder / LINK, folder / PATH_FILE
    path = Path(written.read_text().strip()) if written.is_file() else link
    return path if path.is_dir() else None
