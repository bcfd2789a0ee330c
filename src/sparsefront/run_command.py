"""`python run.py`, or `sparsefront run`: Hydra composes the configuration of an experiment, the pipeline runs it."""

import sys
from collections.abc import Sequence

import hydra
from omegaconf import DictConfig

from sparsefront.config import command_line, schema  # noqa: F401  (schema registers itself and the resolvers)
from sparsefront.config.values import check_root
from sparsefront.options import CONF


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")
def _hydra_main(cfg: DictConfig) -> float | tuple[float, ...] | None:
    """Runs the configured stages; returns the result's values named by `optimize`, for a sweeper."""
    with command_line.job() as output_dir, command_line.report_errors_briefly(cfg, output_dir):
        check_root(cfg)
        # imported here: --help, --cfg and a slip at the root need neither torch nor Lightning, which take seconds
        from sparsefront.pipeline import run_experiment

        return run_experiment(cfg)


def main(arguments: Sequence[str]) -> None:
    """Run one experiment, or a sweep with `-m`.

    Args:
        arguments: of the command line, Hydra's overrides and flags; --help shows the groups.
    """
    with command_line.report_interrupt_briefly():
        sys.argv[1:] = command_line.normalize_or_exit(arguments)
        with command_line.sweep_summary():
            _hydra_main()
