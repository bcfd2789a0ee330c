"""Experts of transformers' mixture-of-experts networks, whose 3-D weights become Linears, one set for each expert.

`Experts.gate_up_proj` [experts, 2 * intermediate, hidden] and `down_proj` [experts, hidden, intermediate] become, for expert e,
`e.gate_proj`, `e.up_proj` and `e.down_proj`, or w1, w3 and w2: the names that these networks have in files, so that
`from_pretrained` opens the state dict.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sparsefront.networks import has_forward_hooks

NAMES = ("gate_proj", "up_proj", "down_proj")
NAMES_OF = {"mixtral": ("w1", "w3", "w2"), "minimax": ("w1", "w3", "w2")}
DOWN = ("down_proj", "w2")  # the Linears that read the hidden features of an expert
FORM = {
    "has_gate": True,
    "has_bias": False,
    "is_transposed": False,
    "is_concatenated": True,
    "has_post_expert_norm": False,
}


class ExpertLinear(nn.Linear):
    """A weight [N, K] of one expert, which only the tokens routed to it reach."""


def are_experts(module: nn.Module) -> bool:
    """Whether these are experts of transformers that `SplitExperts` can replace: two stacked weights, gated, without biases."""
    kind, weights = type(module), module._parameters
    return (
        kind.__module__.startswith("transformers.")
        and set(weights) == {"gate_up_proj", "down_proj"}
        and all(weight is not None and weight.dim() == 3 for weight in weights.values())
        and all(getattr(module, name, None) == value for name, value in FORM.items())
        and getattr(kind, "_apply_gate", None).__name__ == "_default_apply_gate"
        and not has_forward_hooks(module)
    )


class SplitExperts(nn.Module):
    """Computes what the experts compute, expert by expert.

    Also loads state dicts with the 3-D weights.

    Args:
        packed: source of weights and settings; `are_experts`.
    """

    def __init__(self, packed: nn.Module) -> None:
        super().__init__()
        settings: Any = packed
        self.config, self.act_fn = settings.config, settings.act_fn
        self.names = NAMES_OF.get(getattr(settings.config, "model_type", ""), NAMES)
        stacked = settings.gate_up_proj, settings.down_proj
        self.num_experts = len(stacked[0])
        for number, (gate_up, down) in enumerate(zip(*stacked, strict=True)):
            parts = (*gate_up.chunk(2), down)
            expert = nn.ModuleDict()
            for name, part, whole in zip(self.names, parts, (stacked[0], *stacked), strict=True):
                linear = ExpertLinear(part.shape[1], part.shape[0], bias=False, device="meta")
                linear.weight = nn.Parameter(part.detach().clone(), requires_grad=whole.requires_grad)
                expert[name] = linear
            self.add_module(str(number), expert)
        self.train(packed.training)

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """Sum of each token's experts, times their weights.

        Args:
            hidden_states: [tokens, hidden].
            top_k_index, top_k_weights: [tokens, k], the experts of each token.
        """
        total = torch.zeros_like(hidden_states)
        for number in range(self.num_experts):
            expert = self.get_submodule(str(number))
            gate, up, down = (expert.get_submodule(name) for name in self.names)
            tokens, places = torch.where(top_k_index == number)
            if len(tokens) == 0 and not has_forward_hooks(gate):  # whoever listens sees every expert, with no rows
                continue
            x = hidden_states[tokens]
            y = down(self.act_fn(gate(x)) * up(x)) * top_k_weights[tokens, places, None]
            total.index_add_(0, tokens, y.to(total.dtype))
        return total

    def removed(self, block: nn.Module, stays: Sequence[bool]) -> None:
        """After experts were removed: forget them in the router of the block, which has a row for each, and in its settings.

        Args:
            block: the module that owns router and experts.
            stays: whether each expert remains.
        """
        left, before = [number for number, stay in enumerate(stays) if stay], len(stays)
        for module in (self, *block.children(), block):
            for own in [*module._parameters, *module._buffers]:
                tensor = getattr(module, own)
                if tensor is not None and module is not self and len(tensor) == before:
                    rows = tensor.detach()[left]
                    setattr(
                        module, own, nn.Parameter(rows, tensor.requires_grad) if own in module._parameters else rows
                    )
            for name in ("num_experts", "num_local_experts"):
                if vars(module).get(name) == before:
                    setattr(module, name, len(left))
            top = vars(module).get("top_k")
            if isinstance(top, int):
                module.top_k = min(top, len(left))

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        stacked = [state_dict.pop(f"{prefix}{name}", None) for name in ("gate_up_proj", "down_proj")]
        if all(isinstance(tensor, Tensor) and tensor.dim() == 3 for tensor in stacked):
            for number, (gate_up, down) in enumerate(zip(*stacked, strict=True)):
                for name, part in zip(self.names, (*gate_up.chunk(2), down), strict=True):
                    state_dict[f"{prefix}{number}.{name}.weight"] = part
        super()._load_from_state_dict(state_dict, prefix, *rest)
