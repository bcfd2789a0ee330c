"""Results read back from W&B, where the loggers left them."""

import importlib.util
from typing import Any

from sparsefront.errors import InvalidSetting, first_line
from sparsefront.report.loggers import COMPARE_JOB, RESULT_KEY
from sparsefront.report.result import Result
from sparsefront.report.store import Reading, unedited
from sparsefront.report.wandb_account import has_api_key

TIMEOUT_S = 30


def read_wandb_results(*, entity: str | None, project: str | None) -> Reading:
    """The result of every run of a project; runs without one (failed, or still going), and results that were edited, are
    listed as problems, comparisons are not.

    Raises:
        InvalidSetting: no project, no wandb, no API key, or W&B cannot be reached or rejects the request.
    """
    if not project:
        how = "source=wandb needs project=NAME (and entity=NAME where it is not your own)"
        raise InvalidSetting("project", project, how)
    if importlib.util.find_spec("wandb") is None:
        raise InvalidSetting("source", "wandb", "the package wandb is not installed: pip install wandb")
    if not has_api_key():
        raise InvalidSetting("source", "wandb", "there is no API key: set WANDB_API_KEY or run `wandb login` once")
    path = f"{entity}/{project}" if entity else project
    import requests
    import wandb

    reading = Reading()
    try:
        for run in wandb.Api(timeout=TIMEOUT_S).runs(path):
            if getattr(run, "job_type", None) != COMPARE_JOB:
                _read_run(run, reading)
    except (wandb.errors.Error, requests.RequestException, ValueError, OSError) as error:
        # An unknown project reaches us as ValueError, a closed network as RequestException or CommError.
        reason = first_line(error)
        raise InvalidSetting("source", "wandb", f"{path} cannot be read: {reason}") from None
    return reading


def _read_run(run: Any, reading: Reading) -> None:
    text = run.summary.get(RESULT_KEY)
    if text is None:
        reading.problems.append(f"W&B run {run.id} ({run.state}): its summary has no {RESULT_KEY!r}")
        return
    try:
        reading.results.append(unedited(Result.from_json(text)))
    except ValueError as error:
        reading.problems.append(f"W&B run {run.id}: {error}")
