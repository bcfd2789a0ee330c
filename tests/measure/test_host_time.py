"""What keeps the processor busy is refused by its best call."""

import time

import pytest
import torch

from sparsefront.measure.host_time import MOST_MS, TRIES, require_prompt

CPU = torch.device("cpu")


def test_each_call_is_slow():
    with pytest.raises(RuntimeError, match=r"keeps the processor busy for (2|3)\d ms, more than 20"):
        require_prompt(lambda: time.sleep((MOST_MS + 5) / 1e3), CPU)


@pytest.mark.parametrize("prompt", range(TRIES))
def test_one_prompt_call_is_enough(prompt):
    """The others compile, or wait for another process."""
    waits = iter([0.0 if number == prompt else 2 * MOST_MS / 1e3 for number in range(TRIES)])
    require_prompt(lambda: time.sleep(next(waits)), CPU)
