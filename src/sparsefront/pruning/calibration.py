"""Calibration: the batches, layer inputs and gradients that scores are computed from."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain, islice
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparsefront import distributed
from sparsefront.errors import InvalidSetting
from sparsefront.gpu import yield_gpu
from sparsefront.importance.base import Importance, float_matrices
from sparsefront.masks.weight_view import as_matrix, pixel_rows
from sparsefront.models.experts import DOWN, ExpertLinear
from sparsefront.networks import after_forward, before_forward, first_argument, in_eval_mode, layer_weight
from sparsefront.progress import counted
from sparsefront.pruning.block_by_block import BlockRun, chain_of_blocks, inside, run_blocks
from sparsefront.pruning.masked_weights import masked, sharing_layers
from sparsefront.tasks.base import Batch, Task
from sparsefront.tasks.decoding import TranslationNetwork
from sparsefront.tasks.plain_task import (
    NamedBatch,
    NamedBatches,
    PlainTask,
    device_of,
    forward_names,
    require_callable,
    require_finite_inputs,
    require_gradient,
    tensors_first,
)

log = logging.getLogger(__name__)
MasksOf = Callable[[dict[str, Tensor]], Mapping[str, Tensor]]

# In networks with two texts (encoder and decoder), the attention mask of a batch belongs to the encoder's text only.


def in_encoder(net: nn.Module) -> Callable[[nn.Module], bool]:
    """Return a predicate: does a module see the text of the attention mask? In translation networks and encoder-decoder networks
    of transformers, only modules of the encoder do; in any other network, all.
    """
    encoder = _encoder(net)
    inside = set(net.modules() if encoder is None else encoder.modules())
    return inside.__contains__


@contextmanager
def match_encoder_text(net: nn.Module, modules: Mapping[str, nn.Module]) -> Iterator[Callable[[str, Tensor], bool]]:
    """Context that yields a predicate of (layer, input): does this input belong to the text of the attention mask? In a decoder
    only the encoder's output does, which cross-attention reads; lengths cannot tell, since both texts may have the same.
    """
    encoder, inside = _encoder(net), in_encoder(net)
    returned: list[Tensor] = []

    def keep(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        returned[:] = [output if isinstance(output, Tensor) else output[0]]

    with after_forward({} if encoder is None else {"encoder": encoder}, keep):
        yield lambda name, x: inside(modules[name]) or any(x is one for one in returned)


def _encoder(net: nn.Module) -> nn.Module | None:
    """The encoder of a translation network or an encoder-decoder network of transformers, which may be a submodule."""
    for module in net.modules():
        if isinstance(module, TranslationNetwork):
            return module.encoder
        if getattr(getattr(module, "config", None), "is_encoder_decoder", False) and hasattr(module, "get_encoder"):
            get_encoder: Any = module.get_encoder
            encoder: nn.Module = get_encoder()
            return encoder
    return None


def as_rows(module: nn.Module, x: Tensor, real: Tensor | None = None) -> Tensor:
    """The matrix X [rows, K] of the layer's product Y = X W^T, where W is the weight as a matrix [N, K].

    Args:
        module: Linear, or Conv1d or Conv2d without groups.
        x: [..., K], [B, C_in, length] or [B, C_in, height, width], any float dtype.
        real: bool [B, positions], True for tokens that are not padding: of x [B, positions, K] only these become rows,
            because padding does not affect the loss.
    Returns:
        float32; for a convolution, one row per output pixel, with columns in the order of the weight matrix.
    """
    x = x.float()
    if not isinstance(module, nn.Conv1d | nn.Conv2d):
        padded = real is not None and x.shape[:-1] == real.shape
        return x[real] if padded else x.reshape(-1, x.shape[-1])
    if x.dim() == len(module.kernel_size) + 1:  # a single image or sequence
        x = x.unsqueeze(0)
    x = F.pad(x, _padding(module), mode="constant" if module.padding_mode == "zeros" else module.padding_mode)
    kernel, dilation, stride = module.kernel_size, module.dilation, module.stride
    if isinstance(module, nn.Conv1d):  # an image of one row
        x, kernel, dilation, stride = x.unsqueeze(2), (1, *kernel), (1, *dilation), (1, *stride)
    return pixel_rows(x, kernel, dilation=dilation, stride=stride)


def _padding(module: nn.Conv1d | nn.Conv2d) -> list[int]:
    """Padding for `F.pad`: left, right, and above, below; "same" puts an odd pixel right and below."""
    if module.padding == "valid":
        return [0, 0] * len(module.kernel_size)
    if module.padding == "same":
        whole = [d * (k - 1) for d, k in zip(module.dilation, module.kernel_size, strict=True)]
        return [part for side in reversed(whole) for part in (side // 2, side - side // 2)]
    sides: tuple[int, ...] = tuple(map(int, module.padding))
    return [side for side in reversed(sides) for _ in range(2)]


@torch.no_grad()
def sum_over_inputs(
    forward: Callable[[Any], Any],
    batches: Iterable[Any],
    modules: dict[str, nn.Module],
    statistic: Callable[[Tensor], Tensor],
    *,
    real_positions: Callable[[Any], Tensor | None] = lambda batch: None,
    of_that_text: Callable[[str, Tensor], bool] = lambda name, x: True,
) -> dict[str, Tensor]:
    """Layer name -> sum of `statistic(X)` over all its calls; inputs are not kept.

    Args:
        forward: runs the network on a batch.
        real_positions: returns `real` of `as_rows` for a batch.
        of_that_text: whether an input belongs to the text of these positions, given that its shape fits.
        modules: layer name -> module; several calls in one forward are summed.
        statistic: of X, float32 [rows, K]; must be additive over rows.
    Raises:
        ValueError: a batch does not reach a layer; names it.
    """
    # Zeros of the right shape, from an X without rows, if there are no batches.
    sums = {
        name: statistic(weight.new_zeros((0, weight[0].numel()), dtype=torch.float32))
        for name, weight in ((name, layer_weight(module)) for name, module in modules.items())
    }
    reached: set[str] = set()
    real: Tensor | None = None

    def add(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        reached.add(name)
        x = first_argument(args, kwargs)
        sums[name] += statistic(as_rows(modules[name], x, real if of_that_text(name, x) else None))

    with before_forward(modules, add):
        for batch in batches:
            real = real_positions(batch)
            forward(batch)
            _require_reached(modules, reached)
    return sums


@torch.no_grad()
def in_order_of_use(forward: Callable[[Any], Any], batch: Any, modules: dict[str, nn.Module]) -> list[list[str]]:
    """Layers in the order of their first call; layers called consecutively with the same tensor (query, key and value of an
    attention) form one group, because they cannot change each other's inputs.

    Raises:
        ValueError: the batch does not reach a layer; names it.
    """
    groups: list[list[str]] = []
    seen: set[str] = set()
    last: list[Tensor] = []
    of_experts: dict[tuple[str, bool], list[str]] = {}

    def note(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if name in seen:
            return
        seen.add(name)
        x = first_argument(args, kwargs)
        if isinstance(modules[name], ExpertLinear):  # experts beside each other cannot change each other's inputs
            owner, _, role = name.rsplit(".", 2)
            at = owner, role in DOWN
            if at in of_experts:
                of_experts[at].append(name)
                return
            groups.append([name])
            of_experts[at] = groups[-1]
            last[:] = [x]
        elif last and last[0] is x:
            groups[-1].append(name)
        else:
            groups.append([name])
            last[:] = [x]

    with before_forward(modules, note):
        forward(batch)
    _require_reached(modules, seen)
    return groups


def _require_reached(modules: dict[str, nn.Module], reached: set[str]) -> None:
    unreached = [name for name in modules if name not in reached]
    if unreached:
        raise ValueError(f"the network never calls {', '.join(unreached)}: what it is given cannot be seen")


class Accumulator(Protocol):
    """Scores that accumulate during training: `training_masks.AccumulateScores`."""

    def sums(self) -> dict[str, Tensor]:
        """Layer name -> float32 [N, K]."""


def score_weights(
    task: Task,
    layers: list[str],
    *,
    importance: Importance,
    open_loader: Callable[[], Iterable[Batch]],
    accumulator: Accumulator | None = None,
    masks_of: MasksOf | None = None,
    device: torch.device | None = None,
) -> dict[str, Tensor]:
    """Score the layers' current weights; identical on every rank of a distributed run. Layers that share a weight get their
    mean score.

    Args:
        task: the network and its loss, on the device where scores are wanted.
        open_loader, masks_of, device: see `NetworkCalibration`.
        accumulator: of the training; None before it.
    Returns:
        layer name -> float32 [N, K], larger = more worth keeping.
    """
    weights = {name: layer_weight(task.net.get_submodule(name)).detach() for name in layers}
    calibration = NetworkCalibration(task, layers, open_loader, accumulator, masks_of=masks_of, device=device)
    scores = importance.scores(weights, calibration)
    _score_unreached_experts(task.net, weights, scores, importance.name)
    for names in sharing_layers(task.net, layers).values():
        if len(names) > 1:
            scores.update(dict.fromkeys(names, torch.stack([scores[name] for name in names]).mean(0)))
    return scores


def _score_unreached_experts(
    net: nn.Module, weights: Mapping[str, Tensor], scores: dict[str, Tensor], importance: str
) -> None:
    """Score experts that no calibration token reached, whose scores are all 0, by magnitude, in the unit of the others."""
    magnitudes = {layer: as_matrix(weight).float().abs() for layer, weight in weights.items()}
    experts = [layer for layer in weights if isinstance(net.get_submodule(layer), ExpertLinear)]
    unreached = [layer for layer in experts if not scores[layer].any() and magnitudes[layer].any()]
    if not unreached:
        return
    others = [layer for layer in scores if layer not in unreached]
    total = sum(float(magnitudes[layer].sum()) for layer in others)
    unit = sum(float(scores[layer].sum()) for layer in others) / total if total else 1.0
    for layer in unreached:
        scores[layer] = magnitudes[layer].to(scores[layer].device) * (unit or 1.0)
    text = "prune: no calibration token reaches %s of experts (%s%s): magnitude scores them instead of %s"
    more = f" and {len(unreached) - 1} more" if len(unreached) > 1 else ""
    log.warning(text, counted(len(unreached), "layer"), unreached[0], more, importance)


class NetworkCalibration:
    """Implements `importance.base.Calibration` for a network.

    Dropout is off and BatchNorm uses its running statistics, so scores do not depend on random draws and leave no trace. Rank r
    of R reads the batches r, r + R, r + 2R, ...; the data repeats if there are too few. Inputs at padding tokens are ignored.

    Args:
        task: the network and its loss, on the device of the computation.
        layers: names of Linear and Conv2d modules (without groups).
        open_loader: returns a new loader of training batches, which starts from the same first batch each time and on every
            rank. Scores then follow from the weights alone, and a resumed training makes the masks it would have made.
        accumulator: see `score_weights`.
        masks_of: scores of some layers -> their masks, bool [N, K]; required for sequential importances.
        device: where blocks of a causal language model run (see `block_by_block`); None = where its weights are.
    """

    def __init__(
        self,
        task: Task,
        layers: list[str],
        open_loader: Callable[[], Iterable[Batch]],
        accumulator: Accumulator | None = None,
        *,
        masks_of: MasksOf | None = None,
        device: torch.device | None = None,
    ) -> None:
        self._task = task
        self._modules = {name: task.net.get_submodule(name) for name in layers}
        self._open_loader, self._accumulator = open_loader, accumulator
        self._masks_of, self._block_device = masks_of, device

    def gradients(self, batches: int) -> Iterator[Mapping[str, Tensor]]:
        """See `Calibration`."""
        weights = [layer_weight(module) for module in self._modules.values()]
        with in_eval_mode(self._task.net):
            for batch in self.batches(batches):
                # Leave these contexts before yielding: a suspended generator would restore the gradient mode at the wrong time.
                with torch.enable_grad(), _requiring_gradients(weights):
                    loss = self._task.loss(self._forward(batch), batch)
                    require_gradient(loss)
                    gradients = torch.autograd.grad(loss, weights, allow_unused=True)
                yield {
                    name: torch.zeros_like(module.weight)
                    if gradient is None and isinstance(module, ExpertLinear)  # it got no token
                    else gradient
                    for (name, module), gradient in zip(self._modules.items(), gradients, strict=True)
                }

    def input_sums(self, batches: int, statistic: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
        """See `Calibration`.

        Raises:
            ValueError: the network never calls a layer; names it.
        """
        return self.sums_over(list(self._modules), self.batches(batches), statistic)

    def sums_over(
        self, layers: list[str], batches: Iterable[Batch], statistic: Callable[[Tensor], Tensor]
    ) -> dict[str, Tensor]:
        """`input_sums` of some layers, over batches of this rank that were already read."""
        modules = {name: self._modules[name] for name in layers}
        with in_eval_mode(self._task.net), match_encoder_text(self._task.net, modules) as of_that_text:
            return sum_over_inputs(
                self._forward, batches, modules, statistic, real_positions=real_positions, of_that_text=of_that_text
            )

    def input_parts(
        self, batches: int, statistic: Callable[[Tensor], Tensor], decided: Mapping[str, Tensor] | None = None
    ) -> Iterator[dict[str, Tensor]]:
        """See `Calibration`."""
        if not self._blocks:
            yield self.input_sums(batches, statistic)
            return
        read = list(self.batches(batches))
        for block in self._run_blocks(read):
            layers = inside(block.name, list(self._modules))
            yield self._sums_in(block, read, layers, statistic)
            if decided is not None and not block.last:
                assert self._masks_of is not None, "an importance that goes from block to block needs masks"
                block.changed = True
                with masked(self._task.net, self._masks_of({layer: decided[layer] for layer in layers})):
                    block.recompute()

    def totals_in_order(
        self, batches: list[Batch], statistic: Callable[[Tensor], Tensor]
    ) -> Iterator[dict[str, Tensor]]:
        """Yield the `total` of sums for one group of layers after another, in order of use, over batches of this rank that were
        already read. The caller may change weights between groups: later layers then see the new outputs of earlier ones.
        """
        if not self._blocks:
            for group in self.order_of_use():
                yield self.total(self.sums_over(group, batches, statistic))
            return
        some = batches or [self._on_device(next(self._all_batches()))]  # a rank without batches still learns the order
        for block in self._run_blocks(some):
            modules = {name: self._modules[name] for name in inside(block.name, list(self._modules))}
            for group in in_order_of_use(block, 0, modules):
                yield self.total(self._sums_in(block, batches, group, statistic))
                block.changed = True

    @cached_property
    def _blocks(self) -> list[str]:
        return chain_of_blocks(self._task.net, list(self._modules))

    def _run_blocks(self, batches: list[Batch]) -> Iterator[BlockRun]:
        device = self._block_device or self._device
        with in_eval_mode(self._task.net):
            yield from run_blocks(self._task.net, self._blocks, self._forward, batches, device)

    def _sums_in(
        self, block: BlockRun, batches: list[Batch], layers: list[str], statistic: Callable[[Tensor], Tensor]
    ) -> dict[str, Tensor]:
        device = self._block_device or self._device

        def real(number: int) -> Tensor | None:
            positions = real_positions(batches[number])
            return None if positions is None else positions.to(device)

        modules = {name: self._modules[name] for name in layers}
        return sum_over_inputs(block, range(len(batches)), modules, statistic, real_positions=real)

    def order_of_use(self) -> list[list[str]]:
        """The layers grouped in call order (see `in_order_of_use`), identical on every rank."""
        with in_eval_mode(self._task.net):
            return in_order_of_use(self._forward, self._on_device(next(self._all_batches())), self._modules)

    def accumulated(self) -> dict[str, Tensor]:
        """See `Calibration`."""
        if self._accumulator is not None:
            return self._accumulator.sums()
        weights = {name: layer_weight(module) for name, module in self._modules.items()}
        return {name: torch.zeros_like(matrix) for name, matrix in float_matrices(weights).items()}

    def total(self, statistics: dict[str, Tensor]) -> dict[str, Tensor]:
        """See `Calibration`. Ranks must pass the same layers in the same order."""
        for name in statistics:  # one at a time, to free a rank's own sum once the total exists
            statistics[name] = distributed.all_reduce_sum(statistics[name])
        return statistics

    def batches(self, count: int) -> Iterator[Batch]:
        """This rank's share of the first `count` batches, on the network's device.

        Raises:
            ValueError: there are no training batches.
        """
        for batch in islice(self._all_batches(), distributed.rank(), count, distributed.world_size()):
            yield_gpu(self._device)
            yield self._on_device(batch)

    def _all_batches(self) -> Iterator[Batch]:
        while True:
            read = 0
            for batch in self._open_loader():
                read += 1
                yield batch
            if read == 0:
                raise ValueError("there is no batch of training data to calibrate on")

    @property
    def _device(self) -> torch.device:
        return layer_weight(next(iter(self._modules.values()))).device

    def _on_device(self, batch: Batch) -> Batch:
        """Copy a batch: some are kept while the loader produces the next one, perhaps in the same tensors."""
        return {
            key: value.to(self._device, copy=True) if torch.is_tensor(value) else value for key, value in batch.items()
        }

    def _forward(self, batch: Batch) -> Any:
        return self._task.call(self._task.net, self._task.net_inputs(batch))


@contextmanager
def _requiring_gradients(weights: list[Tensor]) -> Iterator[None]:
    """Context in which frozen weights require gradients, so that they are scored too."""
    frozen = [weight for weight in weights if not weight.requires_grad]
    try:
        for weight in frozen:
            weight.requires_grad_(True)
        yield
    finally:
        for weight in frozen:
            weight.requires_grad_(False)


def real_positions(batch: Batch) -> Tensor | None:
    """Bool [B, length], True for tokens of a text batch that are not padding; of two texts, those of the first (the source). None
    if batches are not text.
    """
    return next((batch[name].bool() for name in ("attention_mask", "source_mask") if name in batch), None)


Batches = Iterable | Callable[[], Iterable]
"""Batches as in a training loop, or a function that opens a loader of them, as this package's data modules do."""


@dataclass(frozen=True, eq=False)
class Calibration:
    """Opens the loader anew at each call."""

    net: nn.Module
    open_loader: Callable[[], Iterable[Batch]]

    def __call__(self) -> Iterator[Batch]:
        for batch in self.open_loader():
            require_finite_inputs(batch, "calibration")
            yield batch

    def first_inputs(self) -> dict[str, Any]:
        """The network's arguments for the first batch, on its device."""
        batch = PlainTask(self.net, None).net_inputs(next(iter(self())))
        device = device_of(self.net)
        return {
            name: value.to(device, copy=True) if isinstance(value, Tensor) else value
            for name, value in tensors_first(batch).items()
        }


def open_calibration(net: nn.Module, batches: Batches | None, importance: Importance, most: int | None) -> Calibration:
    """Open the calibration loader. At most `most` batches are read from an iterable without a length.

    Raises:
        InvalidSetting: the importance needs batches and there are none, they have the wrong form, or nothing bounds them.
    """
    if callable(batches):
        allowed = "is a DataLoader, another iterable of batches, or a function that opens one"
        require_callable("calibration", batches, allowed=allowed)
        by_name = NamedBatch(forward_names(net), list, argument="calibration")
        return Calibration(net, partial(_open_batches, batches, by_name))
    if batches is not None:
        return Calibration(net, NamedBatches(batches, net, argument="calibration", most=most).train_dataloader)
    if importance.source in ("gradients", "inputs"):
        allowed = f"importance={importance.name} comes from {importance.source}: give batches, such as a DataLoader"
        raise InvalidSetting("calibration", None, allowed)
    return Calibration(net, list)


def _open_batches(open_loader: Callable[[], Iterable], by_name: NamedBatch) -> Iterator[Batch]:
    """The batches of a loader that a function opens, in the forms of a training loop.

    Raises:
        InvalidSetting: it returns no loader, or an empty one, such as an exhausted iterator.
    """
    loader = open_loader()
    if isinstance(loader, str) or not isinstance(loader, Iterable):
        allowed = "opens a DataLoader or another iterable of batches at each call"
        raise InvalidSetting("calibration", f"a function that returns {type(loader).__name__}", allowed)
    batches = iter(loader)
    first = next(batches, None)
    if first is None:
        allowed = "opens a loader anew at each call: this one is empty"
        raise InvalidSetting("calibration", f"a function that returns {type(loader).__name__}", allowed)
    return map(by_name.named, chain([first], batches))
