"""AdamS: Adam whose momentum turns, for weights that are to be pruned, from the gradient into a pull towards zero."""

import math
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer


class AdamS(Optimizer):
    """For a weight w with gradient g, in step t = 0, 1, ... of T, with a = t / T:

        mu  = b1 mu + (1 - b1) g
        mu' = (1 - a) mu + a decay sign(w)   where the mask prunes w;   mu' = mu   elsewhere
        v   = b2 v + (1 - b2) mu'^2
        w   = w - lr * mu' / (1 - b1^(t+1)) / (sqrt(v / (1 - b2^(t+1))) + eps)

    The l1 decay adapts to each weight: v divides it as it divides the momentum, so that weights with large and with small
    gradients come to zero alike. It never enters mu, whose past would lag behind a change of sign. Since v is made of the
    momentum and not of the gradient, steps are a few times those of Adam at the same rate.

    Args:
        params: float32; a parameter without a mask is kept.
        lr: learning rate.
        decay: lambda, the size of the pull.
        total_steps: T; steps after it pull with a = 1.
        masks: parameter -> bool mask, shaped like it, True = keep; read at every step.
    Source: Huang et al., "CAST: Continuous and Differentiable Semi-Structured Sparsity-Aware Training for Large Language
        Models", 2025, algorithm 1. b1, b2 and eps, which it does not give, are Adam's.
    """

    def __init__(
        self,
        params: Iterable[Parameter],
        *,
        lr: float,
        decay: float,
        total_steps: int,
        masks: Mapping[Tensor, Tensor],
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps})
        self.decay, self.total_steps, self._masks = decay, total_steps, masks

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """One step of all parameters that have a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step(parameter, group)
        return loss

    def _step(self, parameter: Parameter, group: dict) -> None:
        state, (first, second) = self.state[parameter], group["betas"]
        if not state:
            state.update(step=0, momentum=torch.zeros_like(parameter), square=torch.zeros_like(parameter))
        share = min(1.0, state["step"] / self.total_steps)
        state["step"] += 1
        momentum = state["momentum"].lerp_(parameter.grad, 1 - first)
        mask = self._masks.get(parameter)
        if mask is not None:
            pulled = (1 - share) * momentum + share * self.decay * parameter.sign()
            momentum = torch.where(mask, momentum, pulled)
        square = state["square"].mul_(second).addcmul_(momentum, momentum, value=1 - second)
        size = square.sqrt().div_(math.sqrt(1 - second ** state["step"])).add_(group["eps"])
        parameter.addcdiv_(momentum, size, value=-group["lr"] / (1 - first ** state["step"]))
