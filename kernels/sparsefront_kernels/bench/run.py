"""Measuring: for each shape dense first, then peers and our kernels at each sparsity, all in one process."""

import gc
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import torch

from sparsefront_kernels.bench.baselines import DENSE, PEERS
from sparsefront_kernels.bench.contender import Contender, measure
from sparsefront_kernels.bench.floor import Rates, measured_rates
from sparsefront_kernels.bench.ours import gathered_contenders
from sparsefront_kernels.bench.plan import Plan
from sparsefront_kernels.bench.precision import DTYPES, products_in
from sparsefront_kernels.bench.results import Results
from sparsefront_kernels.bench.row import Row
from sparsefront_kernels.bench.row_of import row_of
from sparsefront_kernels.bench.setting import Setting
from sparsefront_kernels.bench.shapes import Shape
from sparsefront_kernels.bench.timing import require_gpu
from sparsefront_kernels.bench.tune import tune
from sparsefront_kernels.tuning.tunable import Tunable

QUICK_SAMPLES = 5  # where the fastest of a peer's settings is looked for


@dataclass
class Run:
    """Measurements on the current CUDA device.

    Args:
        results: where rows go as soon as they are finished.
        say: takes progress, and why a kernel could not run.
        keep_tuned: called after each shape with what was tuned so far.
    """

    results: Results
    say: Callable[[str], None]
    keep_tuned: Callable[[Iterable[Tunable]], None] = lambda tuned: None
    rows: list[Row] = field(init=False, default_factory=list)
    plan: Plan = field(init=False)
    _rates: dict[str, Rates] = field(init=False, default_factory=dict)
    _tuned: dict[str, Tunable] = field(init=False, default_factory=dict)
    _said: set[str] = field(init=False, default_factory=set)

    def measure(self, plan: Plan) -> None:
        """Measure everything of a plan that the results do not hold; what was measured by this run is in `rows`.

        Raises:
            RuntimeError: there is no GPU, or a launch that is tuned gives a wrong product.
        """
        require_gpu()
        gc.collect()
        gc.freeze()  # what is imported stays: collecting after each shape is then quick
        self.plan = plan
        for dtype_name in plan.dtypes:
            self._say_who_refuses(dtype_name)
            for shape in plan.shapes:
                self._shape(shape, dtype_name)
                if self._tuned:
                    self.keep_tuned(self._tuned.values())

    def _say_once(self, line: str) -> None:
        if line not in self._said:
            self._said.add(line)
            self.say(line)

    def _say_who_refuses(self, dtype_name: str) -> None:
        for name in self.plan.peers:
            reasons = {PEERS[name].refusal(dtype_name, sparsity) for sparsity in self.plan.sparsities}
            for reason in sorted(reasons - {None}):
                self._say_once(f"{dtype_name} {name} is left out: {reason}")

    def _shape(self, shape: Shape, dtype_name: str) -> None:
        pending = {sparsity: self._pending(shape, dtype_name, sparsity) for sparsity in self.plan.sparsities}
        if self.results.known(dtype_name, shape.name, 0.0) and not any(any(parts) for parts in pending.values()):
            self.say(f"{shape.name} {dtype_name}: measured before")
            return
        dense_us = self._dense(shape, dtype_name)
        if dtype_name == "fp32" and "tf32" not in self.plan.dtypes:
            self._dense(shape, "tf32")  # what a user may have instead
        for sparsity, (peers, ours) in pending.items():
            if peers or ours:
                with products_in(dtype_name):
                    self._sparse(shape, dtype_name, sparsity, peers, ours, dense_us)
                gc.collect()
                torch.cuda.empty_cache()

    def _pending(self, shape: Shape, dtype_name: str, sparsity: float) -> tuple[list[str], list[tuple[int, str]]]:
        """Peers, and granularities with distributions of ours, of which the results lack a row."""
        known = self.results.known(dtype_name, shape.name, sparsity)
        here = {row["kernel"] for row in known}
        ours = {(row["kernel"], int(row["granularity"]), row["distribution"]) for row in known}
        wanted = {entry.name for entry in self.plan.chosen.entries(dtype_name)}
        kinds = [(unit, kind) for unit in self.plan.granularities for kind in self.plan.distributions]
        missing = [(unit, kind) for unit, kind in kinds if any((name, unit, kind) not in ours for name in wanted)]
        peers = [name for name in self.plan.peers_of(shape) if PEERS[name].refusal(dtype_name, sparsity) is None]
        return [name for name in peers if name not in here], missing

    def _dense(self, shape: Shape, dtype_name: str) -> float:
        """Microseconds of the fastest dense product; its rows are written where the results lack them."""
        with products_in(dtype_name):
            rates = self._rates_of(dtype_name)
            setting = Setting(shape, dtype_name, 0.0, _device())
            contenders = DENSE(setting, self.plan.chosen.layouts)
            rows = [self._row(setting, contender, rates) for contender in contenders]
        dense_us = min(row.latency_us for row in rows if row.latency_us is not None)
        known = {row["kernel"] for row in self.results.known(dtype_name, shape.name, 0.0)}
        self._finish([_against(row, dense_us, "", None) for row in rows if row.kernel not in known])
        return dense_us

    def _sparse(
        self,
        shape: Shape,
        dtype_name: str,
        sparsity: float,
        peers: Sequence[str],
        ours: Sequence[tuple[int, str]],
        dense_us: float,
    ) -> None:
        rates, setting = self._rates_of(dtype_name), Setting(shape, dtype_name, sparsity, _device())
        rows = [row for name in peers for row in self._peer(setting, name, rates)]
        baseline, baseline_us = _best_peer(rows, self.results.known(dtype_name, shape.name, sparsity))
        self._finish([_against(row, dense_us, baseline, baseline_us) for row in rows])
        for granularity, distribution in ours:
            rows = self._ours(setting, granularity, distribution, rates)
            self._finish([_against(row, dense_us, baseline, baseline_us) for row in rows])

    def _ours(self, setting: Setting, granularity: int, distribution: str, rates: Rates) -> list[Row]:
        known = self.results.known(setting.dtype_name, setting.shape.name, setting.sparsity)
        here = {
            row["kernel"]
            for row in known
            if (row["granularity"], row["distribution"]) == (str(granularity), distribution)
        }
        wanted = [entry for entry in self.plan.chosen.entries(setting.dtype_name) if entry.name not in here]
        found = gathered_contenders(
            setting, granularity=granularity, distribution=distribution, wanted=wanted, refused=self._say_once
        )
        if self.plan.tune:
            self._tuned.update({tunable.kernel: tunable for tunable in tune(setting, found, self.say)})
        return [self._row(setting, one.contender, rates) for one in found]

    def _peer(self, setting: Setting, name: str, rates: Rates) -> list[Row]:
        """The fastest setting of each kernel and granularity of a peer; a peer that cannot run is named and left out."""
        settings: dict[tuple[str, int], list[Contender]] = {}
        try:
            for contender in PEERS[name].contenders(setting):
                settings.setdefault((contender.kernel, contender.granularity), []).append(contender)
        except (
            Exception
        ) as error:  # others' code, and any of their reasons not to run: the row is left out and it is said
            self._cannot(setting, name, error)
        best = (self._fastest(setting, name, contenders) for contenders in settings.values())
        return [self._row(setting, contender, rates) for contender in best if contender is not None]

    def _fastest(self, setting: Setting, name: str, contenders: Sequence[Contender]) -> Contender | None:
        times: list[tuple[float, int]] = []
        for place, contender in enumerate(contenders):
            try:
                latency = measure(contender, samples=QUICK_SAMPLES).latency
            except Exception as error:
                self._cannot(setting, name, error)
                continue
            times.append((latency.median_us if latency else torch.inf, place))
        return contenders[min(times)[1]] if times else None

    def _cannot(self, setting: Setting, name: str, error: Exception) -> None:
        torch.cuda.synchronize()
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        self.say(f"{setting.shape.name} {setting.dtype_name} {name} cannot run: {reason}")

    def _row(self, setting: Setting, contender: Contender, rates: Rates) -> Row:
        measured = measure(contender, samples=self.plan.samples)
        time = f"{measured.latency.median_us:.1f} us" if measured.latency else f"wrong by {measured.relative_error:.2g}"
        about = f"{contender.dtype_name} {setting.sparsity:g} {contender.kernel} g={contender.granularity}"
        self.say(f"{setting.shape.name} {about}: {time}")
        return row_of(setting, contender, measured, rates, commit=self.results.commit)

    def _rates_of(self, dtype_name: str) -> Rates:
        if dtype_name not in self._rates:
            rates = self._rates[dtype_name] = measured_rates(DTYPES[dtype_name], _device())
            self.say(f"{dtype_name}: dense {rates.dense_tflops:.0f} TFLOP/s, copy {rates.copy_gb_per_s:.0f} GB/s")
        return self._rates[dtype_name]

    def _finish(self, rows: Sequence[Row]) -> None:
        self.results.add(rows)
        self.rows.extend(rows)


def _best_peer(rows: Iterable[Row], known: Iterable[dict[str, str]]) -> tuple[str, float | None]:
    """Kernel with granularity, and microseconds, of the fastest peer in these rows or in those measured before."""
    times = {f"{row.kernel} {row.granularity}": row.latency_us for row in rows if row.latency_us is not None}
    for row in known:
        if row["kernel"] in PEERS and row["latency_us"]:
            times.setdefault(f"{row['kernel']} {row['granularity']}", float(row["latency_us"]))
    best = min(times, key=times.__getitem__, default="")
    return best, times.get(best)


def _against(row: Row, dense_us: float, baseline: str, baseline_us: float | None) -> Row:
    """The row beside what else was measured."""
    speedup = row.latency_us and dense_us / row.latency_us
    return replace(row, dense_us=dense_us, baseline=baseline, baseline_us=baseline_us, speedup=speedup)


def _device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())
