"""One experiment -> one result: `python run.py pattern=tile_wise granularity=128`; `python run.py --help` shows the groups."""

import sys

import hydra
from omegaconf import DictConfig

from sparsefront.config import command_line, schema  # noqa: F401  (schema registers itself and the resolvers)


@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def main(cfg: DictConfig) -> float | tuple[float, ...] | None:
    """Runs the configured stages; returns the result's values named by `optimize`, for a sweeper."""
    with command_line.job() as output_dir, command_line.report_errors_briefly(cfg, output_dir):
        # imported here: --help and --cfg need neither torch nor Lightning
        from sparsefront.pipeline import run_experiment

        return run_experiment(cfg)


if __name__ == "__main__":
    with command_line.report_interrupt_briefly():
        sys.argv[1:] = command_line.normalize_or_exit(sys.argv[1:])
        with command_line.sweep_summary():
            main()
