"""What the rows of one call share: the network, its dense baseline and its masks, made when a row asks for other ones."""

import gc
import logging
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from experiments.end_to_end.dense import Dense, KnownVariants, find_dense, without_timing
from experiments.end_to_end.kernel_profile import gemm_share, kernel_times_us, write_profile
from experiments.end_to_end.networks import Network, build
from experiments.end_to_end.points import Point
from experiments.end_to_end.pruned import Masks, prune
from experiments.end_to_end.rows import Rows, Timed, row_of
from experiments.end_to_end.sparse import Sparse, make_sparse, without_kernels
from experiments.end_to_end.steps import Steps
from experiments.end_to_end.timing import timed_in_turn
from sparsefront.errors import InvalidSetting, failure_reason
from sparsefront.gpu import alone, sharing
from sparsefront.inference.choice import KernelChoice
from sparsefront.inference.fusion.products import TimedProducts
from sparsefront.inference.swap import why_dense
from sparsefront.measure.settings import DTYPES, Measure
from sparsefront.measure.timers import summarise
from sparsefront.progress import recorded

log = logging.getLogger(__name__)
ALL_SPARSE = 0.999  # of the flops: then forcing sparse kernels changes nothing
MOST_MASKS = 8


@dataclass(frozen=True)
class Options:
    """How rows are measured.

    Args:
        dense, sparse: which ways to run a network are searched; dtype and sizes are taken from the rows.
        timed: False for a dry run: networks are swapped and compared, and nothing else.
        profile: whether the kernels of each row are written beside it.
        tiny: networks of two narrow layers, to try the study itself.
        masked: whether texts come with an attention mask.
        search_again: whether the dense baselines that earlier calls found are forgotten: code that makes them has changed.
    """

    dense: Measure
    sparse: Measure
    timed: bool = True
    profile: bool = False
    tiny: bool = False
    masked: bool = False
    search_again: bool = False


class Session:
    """Measures rows one after the other.

    Raises:
        InvalidSetting: there is no GPU and something is to be timed: a latency of a CPU never stands for one of a GPU.
    """

    def __init__(self, rows: Rows, options: Options) -> None:
        self.rows, self.options = rows, options
        self.device = options.dense.torch_device
        if options.timed and self.device.type != "cuda":
            raise InvalidSetting(
                "device", self.device.type, "rows are latencies of a GPU: use a CUDA device, or --dry-run"
            )
        self.known = KnownVariants(rows.file.with_suffix(".dense.json"), forget=options.search_again)
        self._network: tuple[str, Network] | None = None
        self._dense: Dense | None = None
        self._masks: dict[tuple, Masks] = {}
        self._timed: dict[tuple, TimedProducts] = {}

    def measure(self, point: Point) -> None:
        """Add the row of a point, and the one with forced sparse kernels where those are what `auto` chose everywhere.

        Other processes may work on the GPU at once, but for the time in which one times.

        Raises:
            Exception: whatever fails on the way.
        """
        with recorded() as spans, sharing(self.device):
            self._measure(point)
        kinds: dict[str, float] = defaultdict(float)
        for span in spans:
            kinds[span.kind] += span.seconds
        log.info("%s: %s", point, ", ".join(f"{kind} {seconds:.1f} s" for kind, seconds in kinds.items()))

    def _measure(self, point: Point) -> None:
        steps = Steps()
        with steps("dense"):
            dense = self.dense(point)
        with steps("masks"):
            masks = self.masks(point)
        settings = self._of_dtype(self.options.sparse, point) if self.options.timed else None
        sparse = make_sparse(dense, masks, KernelChoice(point.kernel_mode), settings, steps, self._timed_of(point))
        self._describe(point, sparse)
        self._time(point, masks, dense, sparse, steps)
        forced = replace(point, kernel_mode="sparse")
        if point.kernel_mode == "auto" and sparse.report.sparse_flops_share > ALL_SPARSE and not self.rows.has(forced):
            self._time(forced, masks, dense, sparse, Steps())
        log.info("%s: %s", point, steps)

    def dense(self, point: Point) -> Dense:
        """The dense baseline of the point's place; the one before is given up, with its memory."""
        if self._dense is None or self._dense.place != point.place:
            self._dense = None
            free_memory()
            network = self.network(point.model)
            if not self.options.timed:
                self._dense = without_timing(network, point, self.device, self._dtype(point))
                return self._dense
            settings = self._of_dtype(self.options.dense, point)
            self._dense = find_dense(network, point, settings, self.known)
            if self.options.profile:
                self._profile(point, "dense", self._dense.call)
        return self._dense

    def masks(self, point: Point) -> Masks:
        """Masks of the point's network: the same for every size, dtype and choice of kernels."""
        key = (point.model, point.setting, point.allocation, point.pattern_settings)
        if key not in self._masks:
            if len(self._masks) >= MOST_MASKS:
                self._masks.pop(next(iter(self._masks)))
            self._masks[key] = prune(self.network(point.model), point)
        return self._masks[key]

    def _timed_of(self, point: Point) -> TimedProducts:
        """Times of products with the point's masks in its place: `auto` and `sparse` choose by the same ones."""
        key = (point.place, point.setting, point.allocation, point.pattern_settings)
        return self._timed.setdefault(key, TimedProducts())

    def network(self, model: str) -> Network:
        """The network of that name in float32; the one before is given up."""
        if self._network is None or self._network[0] != model:
            self._network = None
            self._masks = {}
            free_memory()
            self._network = model, build(model, self.device, tiny=self.options.tiny, masked=self.options.masked)
        return self._network[1]

    def _dtype(self, point: Point) -> torch.dtype:
        """That of the point; float32 for a dry run on a CPU, which has no fast fp16."""
        return DTYPES[point.dtype] if self.device.type == "cuda" else torch.float32

    def _of_dtype(self, settings: Measure, point: Point) -> Measure:
        return replace(settings, dtype=point.dtype)

    def _time(self, point: Point, masks: Masks, dense: Dense, sparse: Sparse, steps: Steps) -> None:
        if not self.options.timed:
            return
        with steps("time"):
            calls = {"dense": dense.call, "sparse": sparse.call}
            taken = timed_in_turn(calls, self._of_dtype(self.options.sparse, point))
        if self.device.type == "cuda" and point.kernel_mode == "auto" and sparse.report.sparse_flops_share:
            dense_ms, sparse_ms = (summarise(sum(taken[side], [])).median_ms for side in ("dense", "sparse"))
            if (why := why_dense(sparse_ms, dense_ms)) is not None:
                log.info("%s: every layer stays dense: %s", point, why)
                self._time(point, masks, dense, without_kernels(dense, masks, sparse, why), steps)
                return
        share = None
        if self.options.profile:
            with steps("profile"):
                share = self._profile(point, "sparse", sparse.call)
        timed = Timed(taken["dense"], taken["sparse"], share)
        row = row_of(point, masks, sparse, timed, dense.variant, dense.fused_latency_ms, steps.total)
        self.rows.add(row)
        log.info(
            "%s: %s ms against %s ms (%s): %s, error ratio %s",
            *(point, row["latency_ms"], row["dense_latency_ms"], dense.variant, row["speedup"], row["error_ratio"]),
        )

    def _profile(self, point: Point, side: str, call) -> float | None:
        try:
            with alone(self.device):
                times_us = kernel_times_us(call)
        except Exception as error:  # a profiler that does not work here costs a column, not the row
            log.warning("%s: no profile: %s", point, failure_reason(error))
            return None
        file = Path(self.rows.file).with_suffix(".profile.csv")
        write_profile(file, point.columns, side, times_us)
        return gemm_share(times_us)

    def _describe(self, point: Point, sparse: Sparse) -> None:
        report = sparse.report
        log.info("%s: kernels %s, share %.3f", point, report.kernels, report.sparse_flops_share)
        for name, count in report.fusion.summary().items():
            log.info("  %d blocks: %s", count, name)
        for block in report.fusion.blocks.values():
            for product in block.products:
                if product.candidates and product.timed_as is None:
                    times_us = ", ".join(f"{name} {us:.1f}" for name, us in product.candidates.items())
                    log.info("  %s: us %s", product.describe(), times_us)
        log.info("  ways to run the blocks, ms: %s", report.fusion.variants_ms)
        log.info("  errors: %s, ratio %.3f", sparse.errors, sparse.errors.ratio)


def free_memory() -> None:
    """Give back what nothing refers to any more: CUDA graphs of the place before hold gigabytes."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
