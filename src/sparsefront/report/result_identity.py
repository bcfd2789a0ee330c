"""Which run a result is of."""

from dataclasses import dataclass

from sparsefront.report.field_types import CheckedFields
from sparsefront.report.schema_version import SCHEMA_VERSION


@dataclass(frozen=True, kw_only=True)
class Identity(CheckedFields):
    """Which run this is and what it was measured on; enough to run it again. All of it is of the moment of the measurement:
    a result that is shown or written again keeps it.

    `time` is ISO 8601 with its zone; `commit` is None outside a checkout; `gpu`, `driver`, `cuda` are None on a CPU.
    `config_hash`: of what was typed, see `Experiment.config_hash`; it is `run_id` that tells results apart.
    `gpu_clock_mhz` is the SM clock of that GPU while it ran what was timed, where the driver tells. `processor` and `threads`
    (of one operator) are those of a CPU that was measured on. `dataset_digest`: of the raw data. `dense_weights_sha256`: of the
    network before pruning, `dense_continued_weights_sha256`: of the same trained on; `weights_sha256` and `masks_sha256`: of the
    pruned one.
    `samples_sha256`, `outcomes_sha256`: of the files beside the record; `record_sha256`: of all else that it states, so that
    `sparsefront.verify` tells whether any of it was edited. No machine is named.
    `checkpoint`: the exported network, a folder below the cache folder, to which `checkpoint` in the run's folder links; None
    where nothing was exported. `recovery_seed` is None where nothing was pruned; in results before version 6, where it was
    always `seed`.
    """

    run_id: str
    time: str
    commit: str | None = None
    config_hash: str
    seed: int
    recovery_seed: int | None = None
    gpu: str | None = None
    driver: str | None = None
    cuda: str | None = None
    gpu_clock_mhz: float | None = None
    python: str
    torch_version: str
    triton_version: str | None = None
    lightning_version: str | None = None
    transformers_version: str | None = None
    processor: str | None = None
    threads: int | None = None
    dataset_digest: str | None = None
    dense_weights_sha256: str | None = None
    dense_continued_weights_sha256: str | None = None
    weights_sha256: str | None = None
    masks_sha256: str | None = None
    samples_sha256: str | None = None
    outcomes_sha256: str | None = None
    record_sha256: str | None = None
    checkpoint: str | None = None
    schema_version: int = SCHEMA_VERSION
