"""How networks serve requests: `serving.json` of `measure.mode=serve` as lines of tables, and when a pruning pays for itself."""

import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from sparsefront.artifacts.bounded_files import Unreadable, parse_json_bounded
from sparsefront.errors import first_line, printable
from sparsefront.results.candidates import Candidate, describe_target
from sparsefront.results.columns import milliseconds as three_digits
from sparsefront.results.field_types import Positive, Whole
from sparsefront.results.packed import MEMBERS, SERVING, is_in, read_text_in
from sparsefront.results.record import Cost, Result

log = logging.getLogger(__name__)
_CONFIG = ConfigDict(strict=True, allow_inf_nan=False)


class Rate(BaseModel):
    """A network at one rate of requests: `measure.serving.Served`."""

    model_config = _CONFIG
    rate: Positive
    p50_ms: Positive | None
    p95_ms: Positive | None
    p99_ms: Positive | None
    not_reached: str | None


class Network(BaseModel):
    """A network at all rates; `requests_per_s_at_p99` is the highest within the target, None if there is none."""

    model_config = _CONFIG
    rates: list[Rate]
    requests_per_s_at_p99: Positive | None
    joules_per_call: Positive | None
    samples_of_energy: Whole
    no_energy: str | None

    @property
    def joules_per_request(self) -> float | None:
        return None if self.joules_per_call is None else self.joules_per_call / self.samples_of_energy

    def energy_text(self) -> str:
        """Joules of 1,000 requests, or why they are not known."""
        joules = self.joules_per_request
        return f"not known ({self.no_energy})" if joules is None else three_digits(1e3 * joules)

    def rate_text(self) -> str:
        """The highest rate within the target, or those that were tried."""
        best = self.requests_per_s_at_p99
        return f"none of {', '.join(f'{one.rate:g}' for one in self.rates)}" if best is None else f"{best:g}"

    def latency_text(self) -> str:
        """`3.10 / 8.20 / 18.5 at 400/s`: p50, p95 and p99 at the highest rate within the target; else why there is none."""
        best = next((one for one in self.rates if one.rate == self.requests_per_s_at_p99), None)
        one = best or next((one for one in self.rates if one.p99_ms is not None), None)
        if one is None:
            return next((one.not_reached for one in self.rates if one.not_reached), "no rate was tried")
        return f"{' / '.join(map(three_digits, (one.p50_ms, one.p95_ms, one.p99_ms)))} at {one.rate:g}/s"


class Serving(BaseModel):
    """The networks of one run, served in turn; the pruned one is `sparse`, a smaller dense one too."""

    model_config = _CONFIG
    device: str
    p99_ms: Positive
    dense: Network
    dense_low: Network | None = None
    sparse: Network | None = None

    @property
    def requests_per_s(self) -> float | None:
        """Of the pruned network, or of the dense one where nothing was pruned."""
        return (self.sparse or self.dense).requests_per_s_at_p99


def read_all_serving(results: Iterable[Result], folder_of: Callable[[Result], Path | None]) -> dict[int, Serving]:
    """`id` of a result -> what its folder or packed record holds of its serving, without results that have none.

    A damaged file is left out with a warning.
    """
    served = {}
    for result in results:
        place = folder_of(result)
        if place is not None and is_in(place, SERVING):
            try:
                content = parse_json_bounded(read_text_in(place, SERVING, max_bytes=MEMBERS[SERVING]))
                served[id(result)] = Serving.model_validate(content)
            except (Unreadable, ValidationError) as error:
                log.warning("%s", printable(f"{place / SERVING}: not shown: {first_line(error)}"))
    return served


def serving_lines(results: Iterable[Result], served: Mapping[int, Serving]) -> list[dict[str, str]]:
    """A table with one line per run that served, heading -> text.

    Args:
        served: as from `read_all_serving`.
    """
    return [_line(result, served[id(result)]) for result in results if id(result) in served]


def _networks(result: Result, one: Serving) -> dict[str, Network]:
    names = {"dense": "dense", "dense_low": f"dense in {result.speed.dense_low_precision}", "sparse": "pruned"}
    return {name: network for side, name in names.items() if (network := getattr(one, side)) is not None}


def serving_texts(result: Result, one: Serving) -> list[str]:
    """One line per network: requests per second within the target, latencies, energy."""
    return [
        f"served, {name}: {network.rate_text()} requests/s within p99 {one.p99_ms:g} ms; p50 / p95 / p99, ms: "
        f"{network.latency_text()}; J per 1,000: {network.energy_text()}"
        for name, network in _networks(result, one).items()
    ]


def _line(result: Result, one: Serving) -> dict[str, str]:
    networks = _networks(result, one)
    unread = [network.no_energy for network in networks.values()]
    return {
        "pattern": Candidate((result,)).pattern,
        "target": describe_target(result),
        "seed": str(result.identity.seed),
        "requests/s": _each(networks, Network.rate_text) + f" (p99 ≤ {one.p99_ms:g} ms)",
        "p50 / p95 / p99, ms": _each(networks, Network.latency_text),
        "J per 1,000 requests": f"not known ({unread[0]})" if all(unread) else _each(networks, Network.energy_text),
        "pays for itself": "–" if one.sparse is None else payback_text(result.cost, one.dense, one.sparse),
    }


def _each(networks: dict[str, Network], text: Callable[[Network], str]) -> str:
    return "; ".join(f"{name} {text(network)}" for name, network in networks.items())


def payback_text(cost: Cost, dense: Network, sparse: Network) -> str:
    """After how many requests the energy saved by the pruned network is that of pruning and recovery; else why that is not known.

    Requests are those of the largest batch, as in `joules_per_call`. The dense training, which both need, is not counted.
    """
    spent, each = (cost.prune_joules, cost.recover_joules), (dense.joules_per_request, sparse.joules_per_request)
    if None in spent or None in each:
        return f"not known ({cost.no_joules or sparse.no_energy or 'joules of the training were not measured'})"
    saved = each[0] - each[1]
    return "never: it saves no energy" if saved <= 0 else f"after {sum(spent) / saved:,.0f} requests"
