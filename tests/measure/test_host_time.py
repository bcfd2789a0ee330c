"""What keeps the processor busy is rejected, by the best of its calls."""

import pytest
import torch

from sparsefront.measure.timers import MOST_MS, TRIES, require_short_host_time

CPU = torch.device("cpu")


@pytest.fixture
def calls(clock):
    """calls(milliseconds of each) -> a call that takes so long by the clock, which nothing else moves on."""

    def made(took_ms):
        left = iter(took_ms)
        return lambda: clock.sleep(next(left) / 1e3)

    return made


def test_each_call_is_slow(calls):
    with pytest.raises(RuntimeError, match="keeps the processor busy for 25 ms, more than 20"):
        require_short_host_time(calls([260.0, 25.0, 30.0]), CPU)


@pytest.mark.parametrize("prompt", range(TRIES))
def test_one_prompt_call_is_enough(calls, prompt):
    """The others compile, or wait for another process."""
    require_short_host_time(calls([MOST_MS - 1 if number == prompt else 10 * MOST_MS for number in range(TRIES)]), CPU)
