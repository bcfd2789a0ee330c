"""Settings of Lightning loggers: W&B (offline without an account, never a prompt), TensorBoard, CSV, none; and results read
back from W&B.
"""

import importlib.util
import logging
import netrc
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from sparsefront.errors import InvalidSetting, first_line
from sparsefront.options import require_package
from sparsefront.results.candidates import points_lost
from sparsefront.results.record import Result
from sparsefront.results.store import Reading, require_unedited
from sparsefront.settings_class import settings_class

if TYPE_CHECKING:
    from pytorch_lightning.loggers import Logger


# Detect a W&B account without importing wandb, which could prompt for one.

DEFAULT_URL = "https://api.wandb.ai"


def has_api_key() -> bool:
    """Whether `WANDB_API_KEY` is set or the netrc file has W&B's host (`WANDB_BASE_URL`, else the public one)."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    return _netrc_knows(urlsplit(os.environ.get("WANDB_BASE_URL") or DEFAULT_URL).netloc)


def _netrc_knows(host: str) -> bool:
    netrc_path = os.environ.get("NETRC")
    candidates = [Path(netrc_path)] if netrc_path else [Path("~/.netrc"), Path("~/_netrc")]
    for path in candidates:
        try:
            # Only the host's own entry: a `default` entry is a password for other machines.
            return host in netrc.netrc(path.expanduser()).hosts
        except FileNotFoundError:
            continue
        except (netrc.NetrcParseError, OSError):
            return False
    return False


# Lightning loggers as settings.
#
# W&B only mirrors the run; its `row.json` is authoritative.

log = logging.getLogger(__name__)
RESULT_KEY = "row"  # the result as JSON, in the summary of the W&B run; fixed by stored data
RUN_JOB = "run"  # job type of W&B runs with a result
COMPARE_JOB = "compare"  # job type of W&B runs with a comparison, without a result
ONLINE_TIMEOUT_S = 30
PANELS = "wandb_workspaces"  # package that writes workspaces
MOST_TAG = 64  # maximum length of a tag in W&B


@dataclass(frozen=True, kw_only=True)
class LoggedRun:
    """The information that loggers get about a run.

    Args:
        run_name: shown by W&B.
        output_dir: the run's folder; loggers write only below it, so that concurrent runs do not collide.
        group: name of its sweep.
        config: the configuration, in plain containers.
        run_id: of the record. A W&B run with this id is resumed, so that a point that resumed after a kill, or is shown again,
            stays one run. None: a new run.
        tags: for searching; W&B truncates longer ones.
    """

    run_name: str
    output_dir: Path
    group: str | None
    config: dict[str, Any]
    run_id: str | None = None
    tags: Sequence[str] = ()


class Logging(ABC):
    """Settings of group `logger`. Subclasses are frozen dataclasses whose fields are the keys of their YAML."""

    def check(self) -> None:
        """Check, before anything runs, that this logger can work. Raises InvalidSetting."""

    @abstractmethod
    def build(self, run: LoggedRun) -> "list[Logger]":
        """Create the loggers of a run. Raises InvalidSetting as in `check`."""


@settings_class()
class NoLogging(Logging):
    """No training curves."""

    def build(self, run: LoggedRun) -> "list[Logger]":
        return []


@settings_class()
class CsvLogging(Logging):
    """Training curves in `csv/metrics.csv` of the run's folder."""

    def build(self, run: LoggedRun) -> "list[Logger]":
        from pytorch_lightning.loggers import CSVLogger

        return [CSVLogger(run.output_dir, name="", version="csv")]


@settings_class()
class TensorBoardLogging(Logging):
    """Training curves and numbers of the result in `tensorboard/` of the run's folder: `tensorboard --logdir results`."""

    def check(self) -> None:
        """Raise InvalidSetting if tensorboard is not installed."""
        require_package("tensorboard", key="logger", value="tensorboard", instead="logger=csv or logger=none")

    def build(self, run: LoggedRun) -> "list[Logger]":
        self.check()
        from pytorch_lightning.loggers import TensorBoardLogger

        return [TensorBoardLogger(run.output_dir, name="", version="tensorboard", default_hp_metric=False)]


@settings_class()
class WandbLogging(Logging):
    """Training curves, configuration and the result in W&B.

    Args:
        project: W&B project.
        entity: user or team; None = the account's default.
        mode: "auto" follows `WANDB_MODE`, else is online with an API key and offline without one; "online", "offline" (files
            under `wandb/` of the run's folder, for a later `wandb sync`), "disabled".
    """

    project: str = "sparsefront"
    entity: str | None = None
    mode: Literal["auto", "online", "offline", "disabled"] = "auto"

    def check(self) -> None:
        """Check, before anything runs, that this logger can work.

        Raises:
            InvalidSetting: wandb is not installed, or `mode=online` without an API key.
        """
        require_package("wandb", key="mode", value=self.mode, instead="logger=csv or logger=none")
        if self.mode == "online" and not has_api_key():
            how = "there is no API key: set WANDB_API_KEY or run `wandb login` once, or keep mode=auto"
            raise InvalidSetting("mode", self.mode, how)

    def build(self, run: LoggedRun) -> "list[Logger]":
        """Start the W&B run and wrap it for Lightning.

        Raises:
            InvalidSetting: see `check`; or `mode=online` and W&B does not respond.
        """
        from pytorch_lightning.loggers import WandbLogger

        again: dict[str, Any] = {} if run.run_id is None else {"id": run.run_id, "resume": "allow"}
        again |= {"job_type": RUN_JOB, "tags": [tag[:MOST_TAG] for tag in run.tags]}
        folder = str(run.output_dir)
        started = self.start_run(name=run.run_name, dir=folder, group=run.group, config=run.config, **again)
        if getattr(started, "offline", False):
            log.info("W&B: kept offline; wandb sync %s", Path(started.dir).parent)
        elif getattr(started, "url", None):
            log.info("W&B: %s", started.url)
        return [WandbLogger(experiment=started, save_dir=folder, log_model=False)]

    def start_run(self, **start: Any) -> Any:
        """Start a W&B run in this project; offline without an account, or if W&B does not respond.

        Args:
            start: arguments of `wandb.init` besides project, entity, mode and settings.
        Raises:
            InvalidSetting: see `build`.
        """
        self.check()
        import wandb

        start |= {"project": self.project, "entity": self.entity}
        # silent: the report shows the run's address. console off: do not copy progress bars into the run's files.
        # finish_previous: a failed job of a multirun may have left its run open.
        settings = wandb.Settings(silent=True, console="off", init_timeout=ONLINE_TIMEOUT_S, reinit="finish_previous")
        mode = self._mode_now()
        try:
            return wandb.init(**start, mode=mode, settings=settings)
        except wandb.errors.Error as error:
            if mode != "online":
                raise
            reason = first_line(error)
            if self.mode == "online":
                how = f"W&B did not take the run ({reason}); mode=offline keeps it here"
                raise InvalidSetting("mode", self.mode, how) from None
            log.warning("W&B did not take the run (%s): it is kept offline, `wandb sync` uploads it later", reason)
            return wandb.init(**start, mode="offline", settings=settings)

    def _mode_now(self) -> str:
        if self.mode != "auto":
            return self.mode
        setting = os.environ.get("WANDB_MODE", "online" if has_api_key() else "offline")
        return setting if setting in ("online", "offline", "disabled") else "offline"


def log_result(loggers: "Sequence[Logger]", result: Result, *, again: bool = False, files: Sequence[Path] = ()) -> None:
    """Send the result to every logger and close it: numbers as metrics; for W&B a summary table and the summary.

    Args:
        files: pictures and pages for W&B, as far as they are there.
        again: an earlier result is shown again. A W&B run that has it is not changed; another one only gets the summary,
            which replaces the existing one, so that nothing is duplicated.

    The summary of a W&B run has the numbers of `summary_of`, and the whole result as JSON under `row`, which
    `compare.py source=wandb` reads.
    """
    for logger in loggers:
        run = _wandb_run(logger)
        if run is None:
            numbers = {name: value for name, value in result.flat().items() if isinstance(value, (int, float))}
            logger.log_metrics(numbers)
            logger.save()
        else:
            _log_to_wandb(run, result, again, files)
    close_loggers(loggers)


def summary_of(result: Result) -> dict[str, float | str]:
    """Numbers that W&B compares, without those that were not measured. Latencies of a CPU are `cpu_latency/...`."""
    metric, speed = result.quality.metric_name or "quality", result.speed
    latency = "cpu_latency" if speed.latency_device == "cpu" else "latency"
    sides = ("dense", "masked", "sparse")
    values: dict[str, float | str | None] = {
        **{f"{metric}/{side}": result.value_of(side) for side in sides},
        **{f"{metric}/held_out_{side}": result.value_of(f"val_{side}") for side in sides},
        f"{metric}/points_lost": points_lost(result),
        **{f"{latency}/{side}_ms": result.value_of(f"latency_{side}_ms") for side in ("dense", "dense_low", "sparse")},
        **{f"{latency}/{name}": result.value_of(name) for name in ("speedup", "speedup_low", "speedup_high")},
        f"{latency}/device": result.identity.gpu or speed.latency_device,
        "size/weight_bytes": result.size.weight_bytes_sparse,
        "size/peak_memory_bytes": result.size.peak_memory_bytes_sparse,
        "size/sparsity_achieved": result.sparsity.sparsity_achieved,
        "cost/recover_seconds": result.cost.recover_seconds,
    }
    return {name: value for name, value in values.items() if value is not None}


def _log_to_wandb(run: Any, result: Result, again: bool, files: Sequence[Path]) -> None:
    import wandb

    text = result.to_json()
    if again and run.summary.get(RESULT_KEY) == text:
        return
    flat = {name: value for name, value in result.flat().items() if value is not None}
    if not again:
        shown: dict[str, Any] = {"summary_table": wandb.Table(columns=list(flat), data=[list(flat.values())])}
        for file in filter(Path.is_file, files):
            shown[file.stem] = wandb.Html(str(file)) if file.suffix == ".html" else wandb.Image(str(file))
        run.log(shown)
    run.summary.update({**summary_of(result), RESULT_KEY: text})


def close_loggers(loggers: "Sequence[Logger]", *, failed: bool = False) -> None:
    """Finish the W&B runs; other loggers need nothing. Pass `failed` if a run ends without a result."""
    for logger in loggers:
        run = _wandb_run(logger)
        if run is not None:
            run.finish(exit_code=1 if failed else 0)


def _wandb_run(logger: "Logger") -> Any:
    """The W&B run of a logger, None for other loggers."""
    from pytorch_lightning.loggers import WandbLogger

    return logger.experiment if isinstance(logger, WandbLogger) else None


TIMEOUT_S = 30
PANELS = "wandb_workspaces"  # package that writes workspaces


def read_wandb_results(*, entity: str | None, project: str | None) -> Reading:
    """The result of every run of a project; runs without one (failed or running) and edited results are listed as problems,
    comparisons are skipped.

    Raises:
        InvalidSetting: no project, wandb or API key, or W&B cannot be reached or rejects the request.
    """
    require_account("source", project, "wandb")
    path = f"{entity}/{project}" if entity else project
    import requests
    import wandb

    reading = Reading()
    try:
        for run in wandb.Api(timeout=TIMEOUT_S).runs(path):
            if getattr(run, "job_type", None) != COMPARE_JOB:
                _read_run(run, reading)
    except (wandb.errors.Error, requests.RequestException, ValueError, OSError) as error:
        # wandb raises ValueError for an unknown project, RequestException or CommError without a network.
        reason = first_line(error)
        raise InvalidSetting("source", "wandb", f"{path} cannot be read: {reason}") from None
    return reading


def require_account(key: str, project: str | None, package: str) -> None:
    """Raise InvalidSetting with this key unless a project, the package and an API key of W&B are there."""
    if not project:
        how = f"{key}=wandb needs project=NAME (and entity=NAME where it is not your own)"
        raise InvalidSetting("project", project, how)
    if importlib.util.find_spec(package) is None:
        name = package.replace("_", "-")
        raise InvalidSetting(key, "wandb", f"the package {name} is not installed: pip install {name}")
    if not has_api_key():
        raise InvalidSetting(key, "wandb", "there is no API key: set WANDB_API_KEY or run `wandb login` once")


def write_panels(results: Sequence[Result], *, entity: str | None, project: str | None) -> str:
    """Write a workspace of a project that compares its runs by `summary_of` and their choices; returns its address.

    Args:
        results: with the metrics and devices to show.
    Raises:
        InvalidSetting: see `require_account`; or W&B cannot be reached, or rejects the request.
    """
    require_account("panels", project, PANELS)
    import requests
    import wandb
    import wandb_workspaces.reports.v2 as reports
    import wandb_workspaces.workspaces as workspaces

    metrics = dict.fromkeys(result.quality.metric_name for result in results)
    on_cpu = all(result.speed.latency_device == "cpu" for result in results)
    latency = "cpu_latency" if on_cpu else "latency"
    summary, choice = reports.SummaryMetric, reports.Config
    sections = []
    for metric in metrics:
        columns = [choice(name) for name in ("pattern", "granularity", "sparsity", "recovery", "importance")]
        columns += [summary(f"{metric}/held_out_sparse"), summary(f"{latency}/sparse_ms")]
        grouped = {"groupby": choice("pattern"), "groupby_aggfunc": "mean", "groupby_rangefunc": "stddev"}
        panels = [
            reports.ScatterPlot(x=summary(f"{latency}/speedup"), y=summary(f"{metric}/points_lost")),
            reports.BarPlot(metrics=[f"{metric}/sparse"], **grouped),
            reports.BarPlot(metrics=[f"{latency}/speedup"], **grouped),
            reports.ParallelCoordinatesPlot(
                columns=[reports.ParallelCoordinatesPlotColumn(metric=column) for column in columns]
            ),
            reports.MediaBrowser(media_keys=["report", "pareto"]),
        ]
        sections.append(workspaces.Section(name=f"{metric} and {latency}", panels=panels, is_open=True))
    try:
        owner = entity or wandb.Api(timeout=TIMEOUT_S).default_entity
        written = workspaces.Workspace(entity=owner, project=project, name="sparsefront", sections=sections).save()
        return str(written.url)
    except (wandb.errors.Error, requests.RequestException, ValueError, OSError) as error:
        raise InvalidSetting("panels", "wandb", f"cannot be written: {first_line(error)}") from None


def _read_run(run: Any, reading: Reading) -> None:
    text = run.summary.get(RESULT_KEY)
    if text is None:
        reading.problems.append(f"W&B run {run.id} ({run.state}): its summary has no {RESULT_KEY!r}")
        return
    try:
        reading.results.append(require_unedited(Result.from_json(text)))
    except ValueError as error:
        reading.problems.append(f"W&B run {run.id}: {error}")
