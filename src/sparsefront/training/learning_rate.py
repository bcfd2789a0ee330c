"""The learning-rate curve as a pure function of the step, so that rewinding can return to any point of it exactly."""

import math

DECAYS = ("linear", "cosine", "constant")


def learning_rate_factor(step: int, *, total_steps: int, warmup_steps: int, decay: str) -> float:
    """Factor in [0, 1] on the peak learning rate at optimizer step `step` (the first step is 0).

    It rises linearly to 1 over `warmup_steps`, then falls to 0 at `total_steps`: linear 1 - p, cosine (1 + cos(pi p)) / 2,
    or stays at 1, with p the fraction of the steps after warm-up that are done.
    """
    if step < warmup_steps:
        return (step + 1) / (warmup_steps + 1)
    progress = min(1.0, (step - warmup_steps) / max(1, total_steps - warmup_steps))
    if decay == "linear":
        return 1.0 - progress
    if decay == "cosine":
        return 0.5 * (1.0 + math.cos(math.pi * progress))
    return 1.0
