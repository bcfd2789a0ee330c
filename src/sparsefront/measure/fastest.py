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
from sparsefront.measure.execution_mode import SEPARATOR, FastestMode, NothingRuns, fastest_execution_mode, is_compiled
from sparsefront.measure.search_time import AUTOTUNE, COMPILE, VARIANT, time_work, too_late
from sparsefront.measure.settings import FUSED_GRAPH, PATCH_PRODUCT, VARIANTS
from sparsefront.measure.timers import summarize, time_interleaved
from sparsefront.measure.variants import DoesNotApply, Fuse, make_variant
from sparsefront.progress import SEARCH, track_time

log = logging.getLogger(__name__)
# Candidates kept for the final timing, plus the best fused graph; others are dropped at once to free their graphs' memory.
FINALISTS = 3
FINAL_WARMUP, FINAL_SAMPLES = 5, 20
TURN_WARMUP, TURN_SAMPLES = 1, 10  # when two variants are compared


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
        """The winning candidate and, if it is another one, that of the fused graph: see `rebuild_execution`."""
        return tuple(dict.fromkeys([self.name, *([self.fused.name] if self.fused else [])]))


def candidate_name(mode: str, variants: Sequence[str]) -> str:
    return SEPARATOR.join((mode, *variants))


def rebuild_execution(
    net: nn.Module,
    inputs: dict[str, Tensor],
    versions: Sequence[str],
    *,
    device: torch.device,
    dtype: torch.dtype,
    fuse: Fuse | None = None,
    not_timed: dict[str, str],
) -> Execution:
    """Rebuild what an `ExecutionSearch` found for a network of this architecture, without a search.

    Args:
        versions, not_timed: `Execution.versions` and `Execution.not_timed` of that search.
    Raises:
        DoesNotApply: a variant does not apply.
        NothingRuns: a version fails here, or gives a wrong output.
    """
    executions: list[Execution] = []
    medians_ms: dict[str, float] = {}
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
        medians_ms[version] = fastest.median_ms
        executions.append(Execution(fastest, tuple(variants), medians_ms, not_timed, known=True))
    return replace(executions[0], fused=next((one for one in executions if FUSED_GRAPH in one.variants), None))


@dataclass(frozen=True)
class _Form:
    """A network with some variants applied."""

    net: nn.Module
    variants: tuple[str, ...] = ()

    @property
    def is_fused_graph(self) -> bool:
        return FUSED_GRAPH in self.variants


class ExecutionSearch:
    """A search in two phases, so that those of two networks can take turns.

    Of 19 recorded dense networks the fastest version of 10 is the best unfused form compiled, and of 8 the fused graph
    uncompiled, or compiled where it cannot be recorded: `try_likely` times these, whatever the budget. `try_others` adds
    attention backends, the compiled fused graph, the compiled original and max_autotune, as far as time allows.

    Args:
        net: in eval mode on `device`, in `dtype`; unchanged.
        inputs: keyword arguments of the net, on `device`.
        execution_modes: out of EXECUTION_MODES.
        variants: out of VARIANTS; tried in the order of that tuple.
        fuse: makes the fused graph of the network; None where there is none.
    """

    def __init__(
        self,
        net: nn.Module,
        inputs: dict[str, Tensor],
        *,
        execution_modes: Sequence[str],
        variants: Sequence[str],
        device: torch.device,
        dtype: torch.dtype,
        fuse: Fuse | None = None,
    ) -> None:
        self.net, self.inputs, self.device, self.dtype, self.fuse = net, inputs, device, dtype, fuse
        self.found: list[tuple[_Form, FastestMode]] = []  # fastest first
        self.medians_ms: dict[str, float] = {}
        self.not_timed: dict[str, str] = {}
        if device.type != "cuda":
            self.not_timed |= {mode: "needs a CUDA device" for mode in execution_modes if mode != "eager"}
            execution_modes = [mode for mode in execution_modes if mode == "eager"] or execution_modes
        self.quick = [mode for mode in execution_modes if not is_compiled(mode)] or list(execution_modes[:1])
        self.slowest = [mode for mode in execution_modes if mode.startswith("max_autotune") and mode not in self.quick]
        self.compiled = [mode for mode in execution_modes if mode not in (*self.quick, *self.slowest)]
        self.variants = [name for name in VARIANTS if name in variants]
        self.best: tuple[_Form, FastestMode] | None = None  # unfused, in a quick mode
        self.fused: tuple[_Form, FastestMode | None] | None = None
        self._skips = False

    @track_time(SEARCH)
    def try_likely(self) -> None:
        """Time the versions that are usually the fastest. Raises NothingRuns."""
        plain = self.run(_Form(self.net), self.quick)
        others = [name for name in self.variants if name not in (FUSED_GRAPH, *BACKENDS)]
        self.best = self.improve(_Form(self.net), plain, others)
        self._compile(self.best[0])
        if not any(map(is_compiled, self.medians_ms)):  # the best form may fail where the original does not
            self._compile(_Form(self.net))
        if FUSED_GRAPH in self.variants and (fused := self.vary(_Form(self.net), FUSED_GRAPH)) is not None:
            fastest = self.attempt(fused, self.quick)
            again = [name for name in self.variants if name == PATCH_PRODUCT]
            self.fused = (fused, None) if fastest is None else self.improve(fused, fastest, again)
            if fastest is None or set(fastest.medians_ms) == {"eager"}:  # not recorded, it is only fast when compiled
                self._compile(self.fused[0])

    @track_time(SEARCH)
    def try_others(self) -> None:
        """Time the other versions that are expected to finish within the enclosing `search_time.searching`."""
        assert self.best is not None  # `try_likely` comes first
        self._skips = True
        backends = [name for name in self.variants if name in BACKENDS]
        best, _ = self.improve(*self.best, backends, only_one=True)
        if best is not self.best[0]:
            self._compile(best)
        if self.fused is not None:
            fused, fastest = self.fused
            self._compile(fused if fastest is None else self.improve(fused, fastest, backends, only_one=True)[0])
        self._compile(_Form(self.net))
        if self.slowest:
            self.attempt(self.found[0][0], self.slowest)

    def _compile(self, form: _Form) -> None:
        seen = self.medians_ms | self.not_timed
        modes = [mode for mode in self.compiled if candidate_name(mode, form.variants) not in seen]
        if modes:
            self.attempt(form, modes)

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
        finalists = self.found[:FINALISTS]
        self.found = finalists + [one for one in fused if one not in finalists]
        return fastest

    def attempt(self, form: _Form, modes: Sequence[str]) -> FastestMode | None:
        """The fastest of these modes for this form; None where none works or too little time is left."""
        kind = AUTOTUNE if modes is self.slowest else COMPILE if any(map(is_compiled, modes)) else VARIANT
        late = self._too_late(candidate_name(modes[0], form.variants), kind)
        if late is not None:
            self.not_timed |= {candidate_name(mode, form.variants): late for mode in modes}
            return None
        try:
            with time_work(kind):
                return self.run(form, modes)
        except NothingRuns:
            return None

    def vary(self, form: _Form, variant: str) -> _Form | None:
        """Apply one more variant; None where that fails, with its reason recorded."""
        yield_gpu(self.device)
        name = SEPARATOR.join((*form.variants, variant))
        late = self._too_late(name, VARIANT)
        if late is not None:
            self.not_timed[variant] = late
            return None
        try:
            with time_work(VARIANT):
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
            candidate = None if varied is None else self.attempt(varied, [fastest.name])
            if varied is None or candidate is None:
                continue
            # the time of eager code is the processor's, and says nothing about compiled code
            unknown = self.compiled and fastest.name == "eager" and not only_one
            if unknown or self._faster(candidate, fastest):
                form, fastest = varied, candidate
        return form, fastest

    def _faster(self, found: FastestMode, fastest: FastestMode) -> bool:
        """Time both in turn: a GPU that has warmed up since would make the later one look slow."""
        calls = {"found": found.call, "fastest": fastest.call}
        taken = time_interleaved(calls, device=self.device, warmup=TURN_WARMUP, samples=TURN_SAMPLES)
        medians_ms = {name: summarize(samples).median_ms for name, samples in taken.items()}
        return medians_ms["found"] < medians_ms["fastest"]

    def _too_late(self, what: str, kind: str) -> str | None:
        """Why this is skipped; a variant leaves time to compile it, and max_autotune compiles first."""
        compiles = kind == AUTOTUNE or (kind == VARIANT and self.compiled)
        return too_late(what, kind, COMPILE if compiles else None) if self._skips else None

    def result(self) -> Execution:
        """The fastest of the finalists, all timed in turn, with the best fused graph next to it."""
        calls = {candidate_name(one.name, form.variants): one.call for form, one in self.found}
        if len(calls) > 1:
            taken = time_interleaved(calls, device=self.device, warmup=FINAL_WARMUP, samples=FINAL_SAMPLES)
            self.medians_ms |= {name: summarize(samples).median_ms for name, samples in taken.items()}
        ordered = sorted(self.found, key=lambda one: self.medians_ms[candidate_name(one[1].name, one[0].variants)])
        executions = [Execution(one, form.variants, self.medians_ms, self.not_timed) for form, one in ordered]
        fused = next((one for one in executions if FUSED_GRAPH in one.variants), None)
        return replace(executions[0], fused=fused)

    def _note(self, form: _Form, medians_ms: dict[str, float], not_timed: dict[str, str]) -> None:
        self.medians_ms |= {candidate_name(mode, form.variants): ms for mode, ms in medians_ms.items()}
        self.not_timed |= {candidate_name(mode, form.variants): why for mode, why in not_timed.items()}
