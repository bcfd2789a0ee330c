"""Tuning before timing: every candidate launch of a kernel is checked and timed on the problem at hand."""

from collections.abc import Callable, Iterable

from sparsefront_kernels.bench.ours import Ours
from sparsefront_kernels.bench.provider import measure
from sparsefront_kernels.bench.setting import Setting
from sparsefront_kernels.tuning.launches import Tunable

SAMPLES = 5


class WrongLaunch(RuntimeError):
    """A candidate launch gives a wrong product, or fails."""


def tune(setting: Setting, found: Iterable[Ours], say: Callable[[str], None]) -> list[Tunable]:
    """Time the candidates of each kernel with launch parameters, once for all layouts that share what is found; the fastest is
    remembered.

    Args:
        say: takes how many launches of a kernel were tried.
    Returns:
        what was tuned.
    Raises:
        WrongLaunch: a launch gave a wrong product.
    """
    tuned: dict[str, Tunable] = {}
    # feature-major first: nothing but the kernel itself
    for one in sorted(found, key=lambda one: one.provider.layout != "feature_major"):
        if (tunable := one.tunable) is None:
            continue
        if tunable.kernel in tuned and tunable.measured(one.packed, setting.problem(one.provider.layout)):
            continue
        tuned[tunable.kernel] = tunable
        say(f"{setting.shape.name} {tunable.kernel}: {_tune_one(setting, one)} launches tried")
    return list(tuned.values())


def _tune_one(setting: Setting, one: Ours) -> int:
    """Try all candidates; the fastest right one is remembered, also where a wrong one is an error, and nothing where none is.

    Raises:
        WrongLaunch: a launch gave a wrong product.
    """
    tunable, problem = one.tunable, setting.problem(one.provider.layout)
    times, wrong = {}, []
    try:
        for launch in tunable.candidates(one.packed, problem):
            tunable.try_out(one.packed, problem, launch)
            try:
                measured = measure(one.provider, samples=SAMPLES)
            except Exception as error:  # of a library that compiles it, or at the launch: the others may run
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
