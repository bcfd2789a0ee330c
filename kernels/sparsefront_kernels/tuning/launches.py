"""Launch parameters of a kernel: what can be tuned, and which launch a call uses.

A call uses the launch measured for its problem or the nearest one, on this GPU model or its stand-in; otherwise the launch
measured for the same weight with about as many rows; otherwise the one predicted fastest.
"""

import functools
import re
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict, dataclass, fields
from typing import Any, Protocol

import torch

from sparsefront_kernels.cuda.launch import HOPPER, GpuLimits, gpu_limits, num_sms
from sparsefront_kernels.cuda_library import report_unwritable_cache
from sparsefront_kernels.problem import Problem
from sparsefront_kernels.tuning.store import TunedKernel, tuned_kernel

NEAR = 1.1  # times the best prediction
# The last one gives the context in which a search times on a device: sparsefront adds its lock of GPUs.
ALONE: list[Callable[[torch.device], AbstractContextManager[None]]] = [lambda device: nullcontext()]
_ROWS = re.compile(r"m=(?P<m>\d+) (?P<weight>.*)")  # matches a key


class DescribedProblem(Hashable, Protocol):
    """The properties of a problem that determine the speed of a kernel's launches; a frozen dataclass."""

    @property
    def shape(self) -> str:
        """Everything but the amount of work, as the prefix of the keys of its measurements: "m=64 k=1024 n=1024 kept="."""
        ...

    @property
    def amount(self) -> float:
        """Amount of work; without an exact measurement, the one with the nearest amount is used."""
        ...


@dataclass(frozen=True, eq=False)
class TunedLaunches:
    """Launch parameters of one kernel: the candidates for a problem, and the choice between them at each call.

    Layouts of a kernel may share one, so that tuning one layout tunes all.

    Args:
        kernel, version: key of the measurements in `tuned_kernel`; increment the version when a change of the kernel
            invalidates measurements.
        launch_type: a frozen dataclass.
        describe: (packed weight, problem) → DescribedProblem.
        worth_timing: (described problem, number of SMs) → launches, most promising first.
        untuned: as `worth_timing`, → the launch to use without measurements; None: the first that is worth timing.
        predicted_us: (described problem, launch, number of SMs) → its latency, where that is predicted well enough to leave out
            launches by it.
        similar: described problem → the `shape` of other problems, whose measurements are used if it has none.
        limited: whether `worth_timing` takes the keyword `limits`, a GPU's `GpuLimits`.
        serves: (launch, rows for which it was measured or is on trial, rows of a problem) → whether to use it for that problem
            of the same weight before calling `untuned`: inputs change length, and a prediction takes a millisecond.
    """

    kernel: str
    version: int
    launch_type: type
    describe: Callable[[Any, Problem], DescribedProblem]
    worth_timing: Callable[..., Sequence[Any]]
    untuned: Callable[[Any, int], Any] | None = None
    predicted_us: Callable[[Any, Any, int], float] | None = None
    similar: Callable[[Any], str] | None = None
    serves: Callable[[Any, int, int], bool] | None = None
    limited: bool = False

    def on_gpu(self, described: DescribedProblem, num_sms: int, limits: GpuLimits = HOPPER) -> Sequence[Any]:
        """`worth_timing` on a GPU."""
        return self.worth_timing(described, num_sms, **({"limits": limits} if self.limited else {}))

    def candidates(self, packed: Any, problem: Problem) -> Sequence[Any]:
        """The launches worth timing on the problem's device, which is the current one, most promising first.

        Args:
            packed: result of the entry's `pack`.
        """
        return self.on_gpu(self.describe(packed, problem), num_sms(problem.device), gpu_limits(problem.device))

    def promising(self, packed: Any, problem: Problem, most: int) -> Sequence[Any]:
        """At most so many of `candidates`, without those predicted to take more than NEAR times as long as the first."""
        best, described, sms = (
            self.candidates(packed, problem)[:most],
            self.describe(packed, problem),
            num_sms(problem.device),
        )
        if self.predicted_us is None or not best:
            return best
        bound = NEAR * self.predicted_us(described, best[0], sms)
        return [launch for launch in best if self.predicted_us(described, launch, sms) <= bound]

    def remember(self, packed: Any, problem: Problem, launch: Any, latency_us: float) -> None:
        """Use this launch, with this measured latency, for this problem from now on in this process; `save` persists it."""
        self.record(self.describe(packed, problem), launch, latency_us, _model(problem.device))

    def try_out(self, packed: Any, problem: Problem, launch: Any) -> None:
        """Use this launch for this problem in this process until another is tried or remembered, or `end_trial`."""
        self._table(problem.device).trials[_key(self.describe(packed, problem))] = asdict(launch)
        forget_choices()

    def end_trial(self, packed: Any, problem: Problem) -> None:
        """End the trial: use the launch that would be used without it."""
        self._table(problem.device).trials.pop(_key(self.describe(packed, problem)), None)
        forget_choices()

    def on_trial(self, packed: Any, problem: Problem) -> bool:
        """Whether a launch is on trial for this problem."""
        return _key(self.describe(packed, problem)) in self._table(problem.device).trials

    def launch(self, packed: Any, problem: Problem) -> Any:
        """The launch in use for this problem on its device."""
        return self.launch_for(self.describe(packed, problem), problem.device)

    def measured(self, packed: Any, problem: Problem) -> bool:
        """Whether exactly this problem was measured on this GPU, now or in an earlier process."""
        return "latency_us" in self._entry(self.describe(packed, problem), problem.device)

    def searched(self, packed: Any, problem: Problem) -> Any:
        """The launch that a library's search found for exactly this problem, which was not measured since; or None."""
        entry = self._entry(self.describe(packed, problem), problem.device)
        return None if not entry or "latency_us" in entry else _launch(entry, self.launch_type)

    def save(self, device: torch.device) -> None:
        """Save what this process remembered for this device's model to the user's table.

        Raises:
            OSError: the table cannot be written.
        """
        self._table(device).save()

    def record(self, described: DescribedProblem, launch: Any, latency_us: float | None, gpu: str) -> TunedKernel:
        """Like `remember`, for a GPU model; call `save` on the result to persist it. None: found by a library's search."""
        table = tuned_kernel(gpu, self.kernel, self.version)
        latency = {} if latency_us is None else {"latency_us": round(latency_us, 2)}
        table.record(_key(described), asdict(launch) | latency)
        forget_choices()
        return table

    def launch_for(self, described: DescribedProblem, device: torch.device) -> Any:
        """The launch to use: on trial or measured for this shape, at the nearest amount of work, or else the untuned one."""
        return chosen_launch(self, described, _model(device), num_sms(device), gpu_limits(device))

    def timed_alike(self, described: DescribedProblem, device: torch.device) -> bool:
        """Whether the launch to use was measured, or is on trial, for this shape, so that costly preparation pays off."""
        return _timed_alike(self, described, _model(device))

    def launch_searched(self, described: DescribedProblem, device: torch.device, search: Callable[[], Any]) -> Any:
        """As `launch_for`, after a library's search if this problem is new to this GPU: once, and not while a graph is captured.

        Args:
            device: where it is no CUDA device, nothing is searched.
            search: finds a launch whose result is correct; called while no other process uses the GPU. None: it failed, and only
                later processes search again.
        """
        new = device.type == "cuda" and not _is_known(self, described, _model(device))
        if new and not torch.cuda.is_current_stream_capturing():
            with ALONE[-1](device):
                fastest = search()
            if fastest is None:
                self._table(device).trials[_key(described)] = asdict(self.launch_for(described, device))
                forget_choices()
            else:
                try:
                    self.record(described, fastest, None, _model(device)).save()
                except OSError as error:  # later processes search again
                    report_unwritable_cache(error)
        return self.launch_for(described, device)

    def _entry(self, described: DescribedProblem, device: torch.device) -> dict[str, Any]:
        return self._table(device).entries.get(_key(described), {})

    def _table(self, device: torch.device) -> TunedKernel:
        return tuned_kernel(_model(device), self.kernel, self.version)


@functools.lru_cache(maxsize=4096)
def chosen_launch(
    launches: TunedLaunches, described: DescribedProblem, gpu: str, num_sms: int, limits: GpuLimits = HOPPER
) -> Any:
    """The launch of a kernel on a GPU model; cached, since every call needs it."""
    table = tuned_kernel(gpu, launches.kernel, launches.version)
    shapes = [described.shape] if launches.similar is None else [described.shape, launches.similar(described)]
    for entries in (table.entries | table.trials, table.stand_ins):
        for shape in shapes:
            measured = _measured(entries, shape, launches.launch_type)
            if measured:
                return measured[min(measured, key=lambda amount: abs(amount - described.amount))]
    launch = _of_other_rows(launches, described, gpu)
    if launch is not None:
        return launch
    return (
        launches.on_gpu(described, num_sms, limits)[0]
        if launches.untuned is None
        else launches.untuned(described, num_sms)
    )


def _of_other_rows(launches: TunedLaunches, described: DescribedProblem, gpu: str) -> Any:
    """The launch of this weight with the nearest number of rows for which `serves` holds, or None."""
    if launches.serves is None or (parts := _ROWS.fullmatch(_key(described))) is None:
        return None
    rows = int(parts["m"])
    known = _by_weight(launches, gpu).get(parts["weight"], {})
    near = [measured for measured, launch in known.items() if launches.serves(launch, measured, rows)]
    return known[min(near, key=lambda measured: abs(measured - rows))] if near else None


@functools.lru_cache(maxsize=64)
def _by_weight(launches: TunedLaunches, gpu: str) -> dict[str, dict[int, Any]]:
    """Weight part of the key → rows → launch."""
    table = tuned_kernel(gpu, launches.kernel, launches.version)
    by_weight: dict[str, dict[int, Any]] = {}
    for key, entry in (table.stand_ins | table.entries | table.trials).items():
        with suppress(ValueError, TypeError):  # as in `_measured`
            parts = _ROWS.fullmatch(key)
            if parts:
                by_weight.setdefault(parts["weight"], {})[int(parts["m"])] = _launch(entry, launches.launch_type)
    return by_weight


@functools.lru_cache(maxsize=4096)
def _timed_alike(launches: TunedLaunches, described: DescribedProblem, gpu: str) -> bool:
    table = tuned_kernel(gpu, launches.kernel, launches.version)
    return any(key.startswith(described.shape) for key in table.stand_ins | table.entries | table.trials)


@functools.lru_cache(maxsize=4096)
def _is_known(launches: TunedLaunches, described: DescribedProblem, gpu: str) -> bool:
    """Whether exactly this problem was measured or searched on this GPU model, or has a launch on trial."""
    table = tuned_kernel(gpu, launches.kernel, launches.version)
    return _key(described) in table.entries | table.trials


def forget_choices() -> None:
    """Clear the caches after a change of measurements or trials."""
    chosen_launch.cache_clear()
    _timed_alike.cache_clear()
    _is_known.cache_clear()
    _by_weight.cache_clear()


def _measured(entries: dict[str, Any], shape: str, launch_type: type) -> dict[float, Any]:
    """Amount of work → measured launch, for problems of this shape."""
    launches = {}
    for key, entry in entries.items():
        if key.startswith(shape):
            with suppress(ValueError, TypeError):  # files may be edited by hand; skip bad entries
                launches[float(key.removeprefix(shape))] = _launch(entry, launch_type)
    return launches


def _launch(entry: dict[str, Any], launch_type: type) -> Any:
    """The launch of a table entry, without its latency.

    Raises:
        TypeError: a parameter is missing or has another type.
    """
    parameters = {part.name: entry[part.name] for part in fields(launch_type) if part.name in entry}
    for part in fields(launch_type):
        if isinstance(part.type, type) and part.name in parameters and type(parameters[part.name]) is not part.type:
            raise TypeError(f"{part.name} must be {part.type.__name__}, not {parameters[part.name]!r}")
    return launch_type(**parameters)


def _key(described: DescribedProblem) -> str:
    return f"{described.shape}{described.amount:.4g}"


def _model(device: torch.device) -> str:
    """Model name of the GPU; empty on a CPU, where nothing is measured."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else ""
