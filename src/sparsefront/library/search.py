"""A search for a latency where nobody says how to make it."""

from torch import Tensor, nn

from sparsefront.errors import InvalidSetting
from sparsefront.inference.choice import KernelChoice
from sparsefront.latency_search.search import Search
from sparsefront.latency_search.timing import Timing
from sparsefront.library.calibration import Calibration
from sparsefront.measure.settings import DTYPES, Measure


def default_search(net: nn.Module, inputs: dict[str, Tensor] | None, calibration: Calibration) -> Search:
    """The network is timed on `inputs`, else on the first calibration batch, where it lies and in its own dtype; the calibration
    batches evaluate it.

    Raises:
        InvalidSetting: there are no batches.
    """
    if next(iter(calibration()), None) is None:
        raise InvalidSetting("calibration", None, "is what allocation=latency_search evaluates by: give batches")
    timed = calibration.first_inputs() if inputs is None else inputs
    device = next(iter(timed.values())).device
    dtype = next(parameter.dtype for parameter in net.parameters() if parameter.is_floating_point())
    name = next(name for name, value in DTYPES.items() if value == dtype)
    settings = Measure(device="cuda" if device.type == "cuda" else "cpu", dtype=name)
    return Search(Timing(timed, dtype, settings, KernelChoice()), calibration)
