"""From overrides to a configuration, and one run of it, in this process and without the command line."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from yaml import YAMLError

from sparsefront.arguments import understood
from sparsefront.command_line import BadInput, job
from sparsefront.errors import InvalidSetting, first_line, yaml_complaint
from sparsefront.run_folder import make_writable


def run_overrides(overrides: Sequence[str], config_dir: Path) -> Path:
    """One run from Python, as `python run.py OVERRIDES` does it, but for its log file.

    Args:
        config_dir: the folder of the configuration, conf/ of the repository.
    Returns:
        the run's folder.
    Raises:
        InvalidSetting: a configuration that cannot be composed, or that cannot work.
    """
    from sparsefront.failures import in_one_line
    from sparsefront.pipeline import run_experiment

    with configured(overrides, config_dir) as (config, directory):
        make_writable(config.results_dir, directory)
        (directory / ".hydra").mkdir(exist_ok=True)
        OmegaConf.save(config, directory / ".hydra" / "config.yaml")
        OmegaConf.save(HydraConfig.get().overrides.task, directory / ".hydra" / "overrides.yaml")
        sources = {"hydra": {"runtime": {"config_sources": HydraConfig.get().runtime.config_sources}}}
        OmegaConf.save(OmegaConf.create(sources), directory / ".hydra" / "hydra.yaml")
        try:
            with job(), in_one_line(config, directory):
                run_experiment(config)
        except BadInput as error:
            raise error.__cause__ or error from None
    return directory


@contextmanager
def configured(overrides: Sequence[str], config_dir: Path) -> Iterator[tuple[DictConfig, Path]]:
    """A composed configuration of one run, while Hydra's own settings are those of this run.

    Gives it with the folder that the run would write to, which is not made.

    Raises:
        InvalidSetting: a configuration that cannot be composed.
    """
    import sparsefront.config  # noqa: F401  (registers the schema and the resolvers)

    hydra, before = HydraConfig.instance(), HydraConfig.instance().cfg
    config, directory = _composed(overrides, config_dir)
    try:
        with open_dict(config):
            config.hydra.runtime.output_dir = str(directory)
            hydra.set_config(config)
            del config["hydra"]
        yield config, directory
    finally:
        hydra.cfg = before


def _composed(overrides: Sequence[str], config_dir: Path) -> tuple[DictConfig, Path]:
    """The configuration, Hydra's own part included, and the folder of the run."""
    plain = understood(overrides)
    try:
        with initialize_config_dir(str(config_dir), version_base="1.3", job_name="run"):
            config = compose("config", overrides=plain, return_hydra_config=True)
        return config, Path(config.hydra.run.dir).absolute()
    except YAMLError as error:
        raise InvalidSetting("overrides", " ".join(overrides), f"is no YAML: {yaml_complaint(error)}") from error
    except (
        HydraException,
        ValueError,
    ) as error:  # ValueError: of hydra/output=null, and of an interpolation of nothing
        said = f"{error} ({first_line(error.__cause__)})" if error.__cause__ else str(error)
        raise InvalidSetting("overrides", " ".join(overrides), " ".join(said.split())) from error
