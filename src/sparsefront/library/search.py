"""A search for a latency where nobody says how to make it."""

from torch import Tensor, nn

from sparsefront.errors import InvalidSetting
from sparsefront.inference.choice import KernelChoice
from sparsefront.latency_search.search import Search
from sparsefront.latency_search.timing import Timing
from sparsefront.library.calibration import Calibration
from sparsefront.library.measured_dtype import measured_dtype
from sparsefront.measure.settings import Measure


def default_search(net: nn.Module, inputs: dict[str, Tensor] | None, calibration: Calibration) -> Search:
    """The network is timed on `inputs`, else on the first calibration batch, where it lies and in its own dtypes; the calibration
    batches evaluate it.

    Raises:
        InvalidSetting: there are no batches; or a dtype that nothing is timed in.
    """
    if next(iter(calibration()), None) is None:
        raise InvalidSetting("calibration", None, "is what allocation=latency_search evaluates by: give batches")
    timed = calibration.first_inputs() if inputs is None else inputs
    device = next(iter(timed.values())).device
    settings = Measure(device="cuda" if device.type == "cuda" else "cpu", dtype=measured_dtype(net))
    return Search(Timing(timed, None, settings, KernelChoice()), calibration)
