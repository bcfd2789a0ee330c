"""What must go together where nothing is timed, before anything is trained."""

from sparsefront.errors import InvalidSetting
from sparsefront.experiment import Experiment


def check_untimed(experiment: Experiment) -> None:
    """Kernels are chosen by their times.

    Raises:
        InvalidSetting: kernels are to be swapped in, and `measure.latency` is false.
    """
    if experiment.swaps and not experiment.measure.latency:
        allowed = "kernels are chosen by timing them: add kernel=none, or leave it true"
        raise InvalidSetting("measure.latency", False, allowed)
