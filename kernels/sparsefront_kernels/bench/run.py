"""Measuring: for each shape dense first, then peers and our kernels at each sparsity, all in one process."""

import gc
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch

from sparsefront_kernels.bench.correctness import DTYPES, products_in
from sparsefront_kernels.bench.masks import DrawnWeight, drawn_weight
from sparsefront_kernels.bench.measurement import Rates, measured_rates, row_of
from sparsefront_kernels.bench.ours import Ours, WrongLaunch, our_providers, tune
from sparsefront_kernels.bench.peers import DENSE, PEERS, Timed, best_peer, fastest, fastest_of_each, reason_of
from sparsefront_kernels.bench.plan import Kind, Plan
from sparsefront_kernels.bench.problems import Setting, Shape
from sparsefront_kernels.bench.provider import Provider, measure
from sparsefront_kernels.bench.rows import Results, Row
from sparsefront_kernels.bench.timing import require_gpu
from sparsefront_kernels.tuning.launches import TunedLaunches


@dataclass
class Run:
    """Measurements on the current CUDA device.

    Args:
        results: receives finished rows.
        say: receives progress, and why a kernel could not run.
        keep_tuned: called after each shape with everything tuned so far.
    """

    results: Results
    say: Callable[[str], None]
    keep_tuned: Callable[[Iterable[TunedLaunches]], None] = lambda tuned: None
    rows: list[Row] = field(init=False, default_factory=list)
    errors: list[str] = field(init=False, default_factory=list)
    plan: Plan = field(init=False)
    _rates: dict[str, Rates] = field(init=False, default_factory=dict)
    _dense_us: dict[tuple[str, str, tuple[str, ...]], float] = field(init=False, default_factory=dict)
    _tuned: dict[str, TunedLaunches] = field(init=False, default_factory=dict)
    _said: set[str] = field(init=False, default_factory=set)

    def measure(self, plan: Plan) -> None:
        """Measure everything in a plan that the results lack.

        Rows measured by this run are in `rows`; wrong launches found by tuning, and masks that could not be made, are in
        `errors`.

        Raises:
            RuntimeError: there is no GPU.
        """
        require_gpu()
        gc.collect()
        gc.freeze()  # exclude imports, to make collection after each shape fast
        self.plan = plan
        for dtype_name in plan.dtypes:
            self._log_unsupported(dtype_name)
            for shape in plan.shapes:
                self._shape(shape, dtype_name)
                if self._tuned:
                    self.keep_tuned(self._tuned.values())

    def _say_once(self, line: str) -> None:
        if line not in self._said:
            self._said.add(line)
            self.say(line)

    def _error(self, error: str) -> None:
        self.say(f"ERROR: {error}")
        self.errors.append(error)

    def _log_unsupported(self, dtype_name: str) -> None:
        for name in self.plan.peers:
            reasons = {PEERS[name].unsupported_reason(dtype_name, sparsity) for sparsity in self.plan.sparsities}
            for reason in sorted(reasons - {None}):
                self._say_once(f"{dtype_name} {name} is left out: {reason}")

    def _shape(self, shape: Shape, dtype_name: str) -> None:
        pending = {sparsity: self._pending(shape, dtype_name, sparsity) for sparsity in self.plan.sparsities}
        if self.results.known(dtype_name, shape.name, 0.0) and not any(any(parts) for parts in pending.values()):
            self.say(f"{shape.name} {dtype_name}: measured before")
            return
        dense_us = self._dense(shape, dtype_name)
        if dtype_name == "fp32" and "tf32" not in self.plan.dtypes:
            self._dense(shape, "tf32")  # an alternative for users
        for sparsity, (peers, kinds) in pending.items():
            if peers or kinds:
                with products_in(dtype_name):
                    self._sparse(shape, dtype_name, sparsity, peers, kinds, dense_us)
                gc.collect()
                torch.cuda.empty_cache()

    def _pending(self, shape: Shape, dtype_name: str, sparsity: float) -> tuple[list[str], list[Kind]]:
        """Peers with their own masks, and kinds of masks, for which the results lack a row of ours or of another peer."""
        known = self.results.known(dtype_name, shape.name, sparsity)
        peers = [
            name for name in self.plan.peers_of(shape) if PEERS[name].unsupported_reason(dtype_name, sparsity) is None
        ]
        expected = {entry.label(layout) for entry, layout in self.plan.chosen.entries(dtype_name)}
        expected |= {name for name in peers if self._same_mask(name)}
        missing = [kind for kind in self.plan.kinds() if expected - {row["kernel"] for row in known if kind.holds(row)}]
        here = {row["kernel"] for row in known}
        return [name for name in peers if not PEERS[name].family and name not in here], missing

    def _same_mask(self, name: str) -> bool:
        """Whether a peer uses the same weights as the plan's kernels."""
        return PEERS[name].family in self.plan.chosen.families

    def _dense(self, shape: Shape, dtype_name: str) -> float:
        """Microseconds of the fastest dense product; writes its rows if the results lack them.

        Timed once per shape, also across the plans of one run.
        """
        key = dtype_name, shape.name, self.plan.chosen.layouts
        if key not in self._dense_us:
            self._dense_us[key] = self._timed_dense(shape, dtype_name)
        return self._dense_us[key]

    def _timed_dense(self, shape: Shape, dtype_name: str) -> float:
        with products_in(dtype_name):
            setting = Setting(shape, dtype_name, 0.0, _device())
            rows = [self._row(setting, provider) for provider in DENSE(setting, self.plan.chosen.layouts)]
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
        kinds: Sequence[Kind],
        dense_us: float,
    ) -> None:
        setting = Setting(shape, dtype_name, sparsity, _device())
        rows = [row for name in peers for row in self._peer(setting, name)]
        best = best_peer(rows, _of_peers(self._known(setting), same_mask=False))
        self._finish([_against(row, dense_us, *best) for row in rows])
        for kind in kinds:
            self._kind(setting, kind, dense_us, best)

    def _kind(self, setting: Setting, kind: Kind, dense_us: float, best: Timed) -> None:
        """Measure our kernels and the peers with the same weight, on one mask; `best` is the fastest of the other peers."""
        known = [row for row in self._known(setting) if kind.holds(row)]
        here = {row["kernel"] for row in known}
        try:
            drawn = drawn_weight(
                setting,
                kind.source,
                granularity=kind.granularity,
                distribution=kind.distribution,
                families=self.plan.chosen.families,
            )
        except ValueError as error:  # the pattern cannot divide this shape, or a checkpoint lacks it
            self._error(f"{setting.shape.name} {kind.distribution} g={kind.granularity}: no mask: {error}")
            return
        peers = [name for name in self.plan.peers_of(setting.shape) if self._same_mask(name) and name not in here]
        peers = [name for name in peers if PEERS[name].unsupported_reason(setting.dtype_name, setting.sparsity) is None]
        rows = [row for name in peers for row in self._peer(setting, name, drawn)]
        best = fastest(best, best_peer(rows, _of_peers(known, same_mask=True)))
        self._finish([_against(row, dense_us, *best) for row in rows])
        chosen = self.plan.chosen.entries(setting.dtype_name)
        requested = [(entry, layout) for entry, layout in chosen if entry.label(layout) not in here]
        providers = our_providers(drawn, wanted=requested, report_unsupported=self._say_once)
        if self.plan.tune:
            providers = self._tuned_ones(drawn.setting, providers)
        rows = [self._row(setting, one.provider) for one in providers]
        self._finish([_against(row, dense_us, *best) for row in rows])

    def _known(self, setting: Setting) -> list[dict[str, str]]:
        return self.results.known(setting.dtype_name, setting.shape.name, setting.sparsity)

    def _tuned_ones(self, setting: Setting, found: list[Ours]) -> list[Ours]:
        """Tune kernels that need it; a kernel with a wrong launch is an error of the run and has no row."""
        right = [one for one in found if one.tunable is None]
        for kernel in dict.fromkeys(one.tunable.kernel for one in found if one.tunable is not None):
            alike = [one for one in found if one.tunable is not None and one.tunable.kernel == kernel]
            try:
                self._tuned.update({tunable.kernel: tunable for tunable in tune(setting, alike, self.say)})
            except WrongLaunch as error:
                self._error(str(error))
            else:
                right += alike
        return right

    def _peer(self, setting: Setting, name: str, *drawn: DrawnWeight) -> list[Row]:
        """The fastest setting of each kernel and granularity of a peer; reports and skips a peer that cannot run."""

        def cannot(error: Exception) -> None:
            self._say_once(f"{setting.shape.name} {setting.dtype_name} {name} cannot run: {reason_of(error)}")

        product = drawn[0].setting if drawn else setting
        best = fastest_of_each(partial(PEERS[name].providers, product, *drawn), cannot)
        return [self._row(setting, provider) for provider in best]

    def _row(self, setting: Setting, provider: Provider) -> Row:
        measured = measure(provider, samples=self.plan.samples)
        time = f"{measured.latency.median_us:.1f} us" if measured.latency else f"wrong by {measured.relative_error:.2g}"
        about = f"{provider.dtype_name} {setting.sparsity:g} {provider.kernel} g={provider.granularity}"
        self.say(f"{setting.shape.name} {about}: {time}")
        rates = self._rates_of(setting.dtype_name)
        return row_of(setting, provider, measured, rates, commit=self.results.commit)

    def _rates_of(self, dtype_name: str) -> Rates:
        if dtype_name not in self._rates:
            rates = self._rates[dtype_name] = measured_rates(DTYPES[dtype_name], _device())
            self.say(f"{dtype_name}: dense {rates.dense_tflops:.0f} TFLOP/s, copy {rates.copy_gb_per_s:.0f} GB/s")
        return self._rates[dtype_name]

    def _finish(self, rows: Sequence[Row]) -> None:
        self.results.add(rows)
        self.rows.extend(rows)


def _of_peers(known: Iterable[dict[str, str]], *, same_mask: bool) -> list[dict[str, str]]:
    """The rows of peers with their own masks, or with the same mask as ours."""
    return [row for row in known if row["kernel"] in PEERS and bool(PEERS[row["kernel"]].family) == same_mask]


def _against(row: Row, dense_us: float, baseline: str, baseline_us: float | None) -> Row:
    """Add comparisons to a row."""
    speedup = row.latency_us and dense_us / row.latency_us
    return replace(row, dense_us=dense_us, baseline=baseline, baseline_us=baseline_us, speedup=speedup)


def _device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())
