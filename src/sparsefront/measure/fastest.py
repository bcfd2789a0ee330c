"""Search for the fastest way to run a network: execution modes first, then variants in the fastest mode.

Compilation takes most of the time, so few candidates are compiled: variants are compared in the fastest mode without a
compiler, and only the winner is compiled. A budget in seconds bounds the rest.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from sparsefront.errors import failure_reason
from sparsefront.gpu import yield_gpu
from sparsefront.measure.attention import BACKENDS
from sparsefront.measure.execution_mode import (
    SEPARATOR,
    FastestMode,
    NothingRuns,
    fastest_execution_mode,
    is_compiled,
)
from sparsefront.measure.search_time import COMPILE, NOT_TRIED, VARIANT, timed_work, too_late
from sparsefront.measure.timers import summarise, time_interleaved
from sparsefront.measure.variants import FUSED_GRAPH, PATCH_PRODUCT, VARIANTS, DoesNotApply, Fuse, make_variant
from sparsefront.progress import working_time

log = logging.getLogger(__name__)
# Candidates kept for the final timing, plus the best fused graph; others are dropped at once to free their graphs' memory.
FINALISTS = 3
FINAL_WARMUP, FINAL_SAMPLES = 5, 20
TURN_WARMUP, TURN_SAMPLES = 1, 10  # when two variants are compared
AUTOTUNE_SECONDS = 30.0  # what max_autotune is expected to take on top of a plain compilation


@dataclass(frozen=True)
class Execution:
    """A network in the fastest way found.

    Args:
        fastest: its execution mode and the call to time.
        variants: variants applied to the network, in this order; empty for the original.
        medians_ms: candidate ("mode" or "mode+variant+...") -> median of a short timing.
        not_timed: candidate -> why: it does not apply, failed, gave a wrong output, or time ran out.
        known: rebuilt from an earlier search, whose other candidates are not timed again.
        fused: the fastest execution of the fused graph, if there is one; the same object if that won.
    """

    fastest: FastestMode
    variants: tuple[str, ...] = ()
    medians_ms: dict[str, float] = field(default_factory=dict)
    not_timed: dict[str, str] = field(default_factory=dict)
    fused: "Execution | None" = None
    known: bool = False

    @property
    def name(self) -> str:
        return candidate_name(self.fastest.name, self.variants)

    @property
    def versions(self) -> tuple[str, ...]:
        """The winning candidate and, if it is another one, that of the fused graph: see `rebuilt_execution`."""
        return tuple(dict.fromkeys([self.name, *([self.fused.name] if self.fused else [])]))


def candidate_name(mode: str, variants: Sequence[str]) -> str:
    return SEPARATOR.join((mode, *variants))


def fastest_execution(
    net: nn.Module,
    inputs: dict[str, Tensor],
    *,
    execution_modes: Sequence[str],
    variants: Sequence[str],
    seconds: float,
    device: torch.device,
    dtype: torch.dtype,
    fuse: Fuse | None = None,
) -> Execution:
    """Search the execution modes and variants of a network.

    Args:
        net: in eval mode on `device`, in `dtype`; unchanged.
        inputs: keyword arguments of the net, on `device`.
        execution_modes: out of EXECUTION_MODES.
        variants: out of VARIANTS; tried in the order of that tuple.
        seconds: once spent, only what every search does is still tried: each mode but max_autotune on the best variant of
            the network and on its fused graph. A timing is never cut short. Inside `search_time.searching` candidates that
            cannot finish within that budget are skipped, too.
        fuse: makes the fused graph of the network; None where there is none.
    Raises:
        NothingRuns: no execution mode could run the original network.
    """
    search = _Search(net, inputs, device, dtype, seconds, fuse)
    search.compiles = device.type == "cuda" and any(map(is_compiled, execution_modes))
    if device.type != "cuda":
        search.not_timed |= {mode: "needs a CUDA device" for mode in execution_modes if mode != "eager"}
        execution_modes = [mode for mode in execution_modes if mode == "eager"] or execution_modes
    quick = [mode for mode in execution_modes if not is_compiled(mode)] or list(execution_modes[:1])
    compiled = [mode for mode in execution_modes if mode not in quick and not mode.startswith("max_autotune")]
    slowest = [mode for mode in execution_modes if mode not in quick and mode not in compiled]
    asked = [name for name in VARIANTS if name in variants]

    plain = search.run(_Form(net), quick)
    best = search.improve(_Form(net), plain, [name for name in asked if name not in (FUSED_GRAPH, *BACKENDS)])
    fused, found = None, None
    if FUSED_GRAPH in asked and (fused := search.vary(_Form(net), FUSED_GRAPH)) is not None:
        found = search.attempt(fused, quick)
        if found is not None:
            fused, found = search.improve(fused, found, [name for name in asked if name == PATCH_PRODUCT])
    backends = [name for name in asked if name in BACKENDS]
    best = search.improve(*best, backends, only_one=True)
    forms = [best[0]]
    if fused is not None:
        forms.append(fused if found is None else search.improve(fused, found, backends, only_one=True)[0])
    compile_seconds = 0.0
    for form in forms:
        if compiled:
            start = working_time()
            search.attempt(form, compiled)
            compile_seconds = max(compile_seconds, working_time() - start)
    if compiled and best[0].variants:
        search.attempt(_Form(net), compiled, expected_seconds=compile_seconds)
    if slowest:
        search.attempt(search.fastest_form(), slowest, expected_seconds=compile_seconds + AUTOTUNE_SECONDS)
    return search.result()


def rebuilt_execution(
    net: nn.Module,
    inputs: dict[str, Tensor],
    versions: Sequence[str],
    *,
    device: torch.device,
    dtype: torch.dtype,
    fuse: Fuse | None = None,
) -> Execution:
    """Rebuild what `fastest_execution` found for a network of this architecture, without a search.

    Args:
        versions: `Execution.versions` of that search.
    Raises:
        DoesNotApply: a variant does not apply.
        NothingRuns: a version fails here, or gives a wrong output.
    """
    found = []
    for version in versions:
        mode, *variants = version.split(SEPARATOR)
        form = net
        for variant in variants:
            yield_gpu(device)
            form = make_variant(variant, form, inputs, fuse=fuse)
        original = None if form is net else net
        fastest = fastest_execution_mode(
            form, inputs, execution_modes=[mode], device=device, dtype=dtype, original=original
        )
        found.append(Execution(fastest, tuple(variants), {version: fastest.median_ms}))
    return replace(found[0], fused=next((one for one in found if FUSED_GRAPH in one.variants), None))


@dataclass(frozen=True)
class _Form:
    """A network with some variants applied."""

    net: nn.Module
    variants: tuple[str, ...] = ()

    @property
    def is_fused_graph(self) -> bool:
        return FUSED_GRAPH in self.variants


class _Search:
    """State of one search: the fastest candidates so far, all medians, and why others were not timed."""

    def __init__(
        self,
        net: nn.Module,
        inputs: dict[str, Tensor],
        device: torch.device,
        dtype: torch.dtype,
        seconds: float,
        fuse: Fuse | None,
    ) -> None:
        self.net, self.inputs, self.device, self.dtype, self.fuse = net, inputs, device, dtype, fuse
        self.ends = working_time() + seconds
        self.compiles = False  # whether a compilation is still to come, which needs time
        self.found: list[tuple[_Form, FastestMode]] = []  # fastest first
        self.medians_ms: dict[str, float] = {}
        self.not_timed: dict[str, str] = {}

    def run(self, form: _Form, modes: Sequence[str]) -> FastestMode:
        """The fastest of these modes for this form; records medians and reasons. Raises NothingRuns."""
        try:
            fastest = fastest_execution_mode(
                form.net,
                self.inputs,
                execution_modes=modes,
                device=self.device,
                dtype=self.dtype,
                original=None if form.net is self.net else self.net,
            )
        except NothingRuns as error:
            self._note(form, {}, error.reasons)
            raise
        self._note(form, fastest.medians_ms, fastest.not_timed)
        self.found.append((form, fastest))
        self.found.sort(key=lambda one: one[1].median_ms)
        fused = [one for one in self.found if one[0].is_fused_graph][:1]
        kept = self.found[:FINALISTS]
        self.found = kept + [one for one in fused if one not in kept]
        return fastest

    def attempt(
        self, form: _Form, modes: Sequence[str], *, expected_seconds: float | None = None
    ) -> FastestMode | None:
        """The fastest of these modes for this form; None where none works or too little time is left.

        Args:
            expected_seconds: of a timing that may be skipped; None for one that is always done.
        """
        left = self.ends - working_time()
        if expected_seconds is not None and expected_seconds > left:
            reason = (
                f"{NOT_TRIED}: about {expected_seconds:.0f} s are needed, {max(0.0, left):.0f} s of the search are left"
            )
            self.not_timed |= {candidate_name(mode, form.variants): reason for mode in modes}
            return None
        kind = COMPILE if any(map(is_compiled, modes)) else VARIANT
        self.compiles = self.compiles and kind == VARIANT
        late = too_late(candidate_name(modes[0], form.variants), kind, self._next_kind()) if self.found else None
        if late is not None:
            self.not_timed |= {candidate_name(mode, form.variants): late for mode in modes}
            return None
        try:
            with timed_work(kind):
                return self.run(form, modes)
        except NothingRuns:
            return None

    def vary(self, form: _Form, variant: str) -> _Form | None:
        """Apply one more variant; None where that fails, with its reason recorded."""
        yield_gpu(self.device)
        name = SEPARATOR.join((*form.variants, variant))
        if (late := too_late(name, VARIANT, self._next_kind())) is not None:
            self.not_timed[variant] = late
            return None
        try:
            with timed_work(VARIANT):
                net = make_variant(variant, form.net, self.inputs, fuse=self.fuse)
        except DoesNotApply as reason:
            self.not_timed[variant] = str(reason)
        except Exception as error:  # a rewrite may fail in any way on an unknown network
            self.not_timed[variant] = failure_reason(error)
            log.warning("variant %s failed: %s", variant, self.not_timed[variant])
        else:
            return _Form(net, (*form.variants, variant))
        return None

    def improve(
        self, form: _Form, fastest: FastestMode, variants: Sequence[str], *, only_one: bool = False
    ) -> tuple[_Form, FastestMode]:
        """Add each variant that makes this form faster in its own mode; with `only_one`, the best of them alone."""
        start = form
        for variant in variants:
            varied = self.vary(start if only_one else form, variant)
            found = None if varied is None else self.attempt(varied, [fastest.name])
            if varied is not None and found is not None and self._faster(found, fastest):
                form, fastest = varied, found
        return form, fastest

    def _faster(self, found: FastestMode, fastest: FastestMode) -> bool:
        """Time both in turn: a GPU that has warmed up since would make the later one look slow."""
        calls = {"found": found.call, "fastest": fastest.call}
        taken = time_interleaved(calls, device=self.device, warmup=TURN_WARMUP, samples=TURN_SAMPLES)
        medians_ms = {name: summarise(samples).median_ms for name, samples in taken.items()}
        return medians_ms["found"] < medians_ms["fastest"]

    def _next_kind(self) -> str | None:
        return COMPILE if self.compiles else None

    def fastest_form(self) -> _Form:
        return self.found[0][0]

    def result(self) -> Execution:
        """The fastest of the finalists, all timed in turn, with the best fused graph next to it."""
        calls = {candidate_name(one.name, form.variants): one.call for form, one in self.found}
        if len(calls) > 1:
            taken = time_interleaved(calls, device=self.device, warmup=FINAL_WARMUP, samples=FINAL_SAMPLES)
            self.medians_ms |= {name: summarise(samples).median_ms for name, samples in taken.items()}
        ordered = sorted(self.found, key=lambda one: self.medians_ms[candidate_name(one[1].name, one[0].variants)])
        executions = [Execution(one, form.variants, self.medians_ms, self.not_timed) for form, one in ordered]
        fused = next((one for one in executions if FUSED_GRAPH in one.variants), None)
        return replace(executions[0], fused=fused)

    def _note(self, form: _Form, medians_ms: dict[str, float], not_timed: dict[str, str]) -> None:
        self.medians_ms |= {candidate_name(mode, form.variants): ms for mode, ms in medians_ms.items()}
        self.not_timed |= {candidate_name(mode, form.variants): why for mode, why in not_timed.items()}
