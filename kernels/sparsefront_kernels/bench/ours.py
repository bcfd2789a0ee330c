"""The kernels of this package as providers, and their tuning: every candidate launch is checked and timed."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from sparsefront_kernels.bench.masks import DrawnWeight
from sparsefront_kernels.bench.problems import Setting
from sparsefront_kernels.bench.provider import Provider, measure, numbered, provider_of
from sparsefront_kernels.kernel_entry import KernelEntry
from sparsefront_kernels.tuning.launches import TunedLaunches

TUNING_SAMPLES = 5


@dataclass(frozen=True)
class Ours:
    """A kernel of this package on a problem: its provider, which names the layout, and what tuning needs."""

    provider: Provider
    entry: KernelEntry
    packed: Any

    @property
    def tunable(self) -> TunedLaunches | None:
        return self.entry.tunable_in(self.provider.layout)


def our_providers(
    drawn: DrawnWeight, *, wanted: list[tuple[KernelEntry, str]], report_unsupported: Callable[[str], None]
) -> list[Ours]:
    """The requested kernels and layouts that support the problem, for the families that the weight is stored in.

    Args:
        report_unsupported: called with the reason for each kernel that does not support it.
    """
    copies: dict[Any, Callable[[int], Any]] = {}  # packed weights, shared by kernels with equal packing
    providers = []
    for entry, layout in wanted:
        label = entry.label(layout)
        stored = drawn.stored.get(entry.family)
        if stored is None:
            report_unsupported(f"{label} is left out: {drawn.pattern} is not stored as {entry.family}")
            continue
        reason = entry.unsupported_reason(stored, drawn.setting.problem(layout))
        if reason:
            report_unsupported(f"{label} is left out: {reason}")
            continue
        key = entry.family, entry.pack
        if key not in copies:
            copies[key] = numbered(entry.pack(stored))
        provider = _provider(drawn, entry, layout, copies[key])
        providers.append(Ours(provider, entry, copies[key](0)))
    return providers


def _provider(drawn: DrawnWeight, entry: KernelEntry, layout: str, packed: Callable[[int], Any]) -> Provider:
    setting = drawn.setting

    def make(copy: int):
        x, own = setting.x_in(layout, copy), packed(copy)
        return lambda: entry.run(x, own, layout=layout)

    return provider_of(
        setting,
        family=entry.family,
        kernel=entry.label(layout),
        layout=layout,
        outputs=setting.shape.n,
        weight_bytes=drawn.stored[entry.family].nbytes,
        make=make,
        **drawn.columns,
    )


class WrongLaunch(RuntimeError):
    """A candidate launch computes a wrong product, or fails."""


def tune(setting: Setting, found: Iterable[Ours], say: Callable[[str], None]) -> list[TunedLaunches]:
    """Time the candidate launches of each kernel, once for all layouts that share the result, and record the fastest.

    Args:
        say: receives the number of launches tried per kernel.
    Returns:
        what was tuned.
    Raises:
        WrongLaunch: a launch computed a wrong product.
    """
    tuned: dict[str, TunedLaunches] = {}
    # feature-major first: the kernel without transposes
    for one in sorted(found, key=lambda one: one.provider.layout != "feature_major"):
        tunable = one.tunable
        if tunable is None:
            continue
        if tunable.kernel in tuned and tunable.measured(one.packed, setting.problem(one.provider.layout)):
            continue
        tuned[tunable.kernel] = tunable
        say(f"{setting.shape.name} {tunable.kernel}: {_tune_one(setting, one)} launches tried")
    return list(tuned.values())


def _tune_one(setting: Setting, one: Ours) -> int:
    """Try all candidates and record the fastest correct one, if any, even if a wrong one raises.

    Raises:
        WrongLaunch: a launch computed a wrong product.
    """
    tunable, problem = one.tunable, setting.problem(one.provider.layout)
    times, wrong = {}, []
    try:
        for launch in tunable.candidates(one.packed, problem):
            tunable.try_out(one.packed, problem, launch)
            try:
                measured = measure(one.provider, samples=TUNING_SAMPLES)
            except Exception as error:  # from compilation or launch: other candidates may work
                wrong.append(f"{launch} (cannot run: {(str(error).splitlines() or [type(error).__name__])[0]})")
                continue
            if measured.latency is None:
                wrong.append(f"{launch} (relative error {measured.relative_error:.2g})")
            else:
                times[launch] = measured.latency.median_us
    finally:
        tunable.end_trial(one.packed, problem)
    if times:
        best = min(times, key=times.__getitem__)
        tunable.remember(one.packed, problem, best, times[best])
    if wrong:
        raise WrongLaunch(f"{one.provider.kernel}: wrong products on {problem} by {', '.join(wrong)}")
    return len(times)
