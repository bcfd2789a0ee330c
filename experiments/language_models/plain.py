"""Wanda, SparseGPT and magnitude written out plainly for a Llama, in PyTorch alone: what the library is held against.

Wanda: a block's inputs are what the pruned blocks before it give, all of its layers at once. SparseGPT: the same, and within a
block q, k, v, then o, then gate and up, then down. Of equal scores the lower index is kept.
"""

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

GROUPS = (
    ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    ("self_attn.o_proj",),
    ("mlp.gate_proj", "mlp.up_proj"),
    ("mlp.down_proj",),
)
LAYERS = tuple(name for group in GROUPS for name in group)
COLUMNS, DAMPING = 128, 0.01
AT_ONCE = 8  # windows
Run = Callable[[], list[Tensor]]


def kept(scores: Tensor, window: int | None) -> Tensor:
    """Bool like scores: the better half of each row, or two of every four along it (`window` 4)."""
    rows = scores.reshape(-1, window or scores.shape[-1])
    order = rows.argsort(dim=-1, descending=True, stable=True)[:, : rows.shape[-1] // 2]
    return torch.zeros_like(rows, dtype=torch.bool).scatter_(-1, order, True).reshape(scores.shape)


@torch.no_grad()
def magnitude(net: nn.Module, windows: Tensor, window: int | None) -> None:
    """The half of each layer's weights that is larger goes on, or of each four."""
    for block in net.model.layers:
        for layer in map(block.get_submodule, LAYERS):
            size = layer.weight.abs()
            mask = kept(size, window) if window else kept(size.reshape(1, -1), None).reshape(size.shape)
            layer.weight.mul_(mask)


@torch.no_grad()
def wanda(net: nn.Module, windows: Tensor, window: int | None) -> None:
    """`windows`: int64 [windows, T], as in all of these."""

    def prune(block: nn.Module, run: Run) -> None:
        sums = _over_inputs(block, LAYERS, run, lambda x: x.square().sum(0))
        for name, squares in sums.items():
            weight = block.get_submodule(name).weight
            weight.mul_(kept(weight.abs() * squares.sqrt(), window))

    _block_by_block(net, windows, prune)


@torch.no_grad()
def sparsegpt(net: nn.Module, windows: Tensor, window: int | None) -> None:
    def prune(block: nn.Module, run: Run) -> None:
        for group in GROUPS:
            for name, hessian in _over_inputs(block, group, run, lambda x: 2 * x.t() @ x).items():
                weight = block.get_submodule(name).weight
                weight.copy_(_swept(weight.clone(), hessian, window))

    _block_by_block(net, windows, prune)


def _swept(weight: Tensor, hessian: Tensor, window: int | None) -> Tensor:
    hessian = hessian + DAMPING * hessian.diagonal().mean() * torch.eye(len(hessian), device=hessian.device)
    factor = torch.linalg.cholesky(torch.cholesky_inverse(torch.linalg.cholesky(hessian)), upper=True)
    for first in range(0, weight.shape[1], COLUMNS):
        last = min(first + COLUMNS, weight.shape[1])
        part, errors = weight[:, first:last].clone(), torch.zeros_like(weight[:, first:last])
        diagonal = factor.diagonal()[first:last]
        mask = None if window else kept((part.square() / diagonal.square()).reshape(1, -1), None).reshape(part.shape)
        for column in range(last - first):
            if window and column % window == 0:
                some = slice(column, column + window)
                chosen = kept(part[:, some].square() / diagonal[some].square(), window)
            keep = chosen[:, column % window] if window else mask[:, column]
            target = part[:, column] * keep
            errors[:, column] = (part[:, column] - target) / diagonal[column]
            part[:, column + 1 :] -= errors[:, column, None] * factor[first + column, first + column + 1 : last]
            part[:, column] = target
        weight[:, first:last] = part
        weight[:, last:] -= errors @ factor[first:last, last:]
    return weight


def _block_by_block(net: nn.Module, windows: Tensor, prune: Callable[[nn.Module, Run], None]) -> None:
    hidden: list[Tensor] = [net.model.embed_tokens(ids) for ids in windows.split(AT_ONCE)]
    places = torch.arange(hidden[0].shape[1], device=hidden[0].device)[None]
    angles = net.model.rotary_emb(hidden[0], places)
    for block in net.model.layers:

        def run(block: nn.Module = block) -> list[Tensor]:
            calls = {"attention_mask": None, "position_ids": places, "position_embeddings": angles}
            return [block(one, **calls) for one in hidden]

        prune(block, run)
        hidden[:] = run()


def _over_inputs(
    block: nn.Module, names: Sequence[str], run: Run, statistic: Callable[[Tensor], Tensor]
) -> dict[str, Tensor]:
    sums: dict[str, Tensor] = {}

    def see(name: str, x: Tensor) -> None:
        value = statistic(x.reshape(-1, x.shape[-1]).float())
        sums[name] = sums[name] + value if name in sums else value

    hooks = [
        block.get_submodule(name).register_forward_pre_hook(lambda _, args, name=name: see(name, args[0]))
        for name in names
    ]
    run()
    for hook in hooks:
        hook.remove()
    return sums


@torch.no_grad()
def perplexity(net: nn.Module, windows: Tensor) -> float:
    """Over all tokens of each window but its first."""
    loss = 0.0
    for ids in windows.split(AT_ONCE):
        logits = net(input_ids=ids).logits[:, :-1].flatten(0, 1).float()
        loss += F.cross_entropy(logits, ids[:, 1:].flatten(), reduction="sum").item()
    return math.exp(loss / windows[:, 1:].numel())
