"""`recovery.backend=sparse`: training that multiplies only by kept blocks or kept outputs, not by masked zeros.

During a fit, pruned Linear layers are replaced by modules whose parameter holds only the kept weights. Optimizer, clipping,
weight decay, weight averages, checkpoints and gradient exchange therefore see nothing else. Afterwards the original layers
are restored with the trained weights.
"""

import itertools
import json
import logging
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from sparsefront_kernels import mask_structure
from sparsefront_kernels.blocked.training import TrainableBlockedLinear, training_unsupported_reason
from sparsefront_kernels.gathered.training import TrainableTilesLinear
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from sparsefront import distributed
from sparsefront.artifacts.durable import whole_file
from sparsefront.errors import InvalidSetting
from sparsefront.networks import has_forward_hooks, keep_modes
from sparsefront.patterns.base import Pattern
from sparsefront.patterns.block_wise import BlockWise
from sparsefront.progress import counted
from sparsefront.pruning.masked_weights import MaskedWeights, sharing_layers
from sparsefront.recovery.base import Backend, LayerMasks, MakeMasks, Round, backend_unsupported_reason
from sparsefront.tasks.base import with_square_mask
from sparsefront.training.recipe import Optimization
from sparsefront.training.resume import random_state, set_random_state

log = logging.getLogger(__name__)
KEY = "recovery.backend"

Trainable = TrainableBlockedLinear | TrainableTilesLinear

MASK = "kept"  # suffix of a layer's mask in a state dict
CHOICE = "backend.json"  # the backend that `auto` chose, for resumed runs


def pattern_of_blocks(masks: Mapping[str, Tensor]) -> BlockWise | None:
    """The block pattern of plain masks, with blocks that divide every layer; None if a layer keeps single weights."""
    structures = [mask_structure(mask.flatten(1)) for mask in masks.values()]
    blocks = [parameters["block"] for family, parameters in structures if family == "blocked"]
    if not blocks or any(family not in ("blocked", "dense") for family, _ in structures):
        return None
    return BlockWise("x".join(str(min(sides)) for sides in zip(*blocks, strict=True)))


@contextmanager
def sparse_layers(
    backend: Backend, round: Round, optimization: Optimization, *, quantize: bool
) -> Iterator[tuple[MaskedWeights, MakeMasks]]:
    """Context in which the pruned layers of `round.net` are replaced as the backend needs; they are restored on exit.

    Args:
        round: its masks are applied.
        optimization: of this round, for `auto`.
    Returns:
        the masked weights and the function that remakes masks, both as if no layer were replaced.
    Raises:
        InvalidSetting: with backend sparse, a weight is frozen or shared, or no layer can be trained.
    """
    chosen = _choose(backend, round, optimization, quantize=quantize)
    with _convert(round) if chosen == "sparse" else nullcontext(round.masked) as masked:
        yield masked, masked.making(round.make_masks) if isinstance(masked, TrainedMasks) else round.make_masks


@contextmanager
def _convert(round: Round) -> Iterator["TrainedMasks"]:
    net, masks = round.net, round.masked.masks()
    trained, dense = _sort_layers(net, masks, round)
    if not trained:
        first, reason = next(iter(dense.items()))
        raise InvalidSetting(KEY, "sparse", f"trains Linear layers, and finds none: {first} {reason}; use dense")
    some = f"; {counted(len(dense), 'layer')} under dense masks: {_first(dense)}" if dense else ""
    log.info("recover: %s trained by kept weights alone%s", counted(len(trained), "layer"), some)
    with ExitStack() as undo:
        held = TrainedMasks(net, list(dense), {name: masks[name] for name in trained})
        undo.callback(held.hand_over, round.masked)
        for name in trained:
            held.linears[name] = _replace(net, name, masks[name], round)
            undo.callback(_restore, net, name, held.linears[name])
        if round.setup.pruning.schedule.in_training:
            undo.enter_context(held.in_checkpoints())
        _require_right(net, trained, round.setup.trainer.product_dtype, torch.device(round.setup.trainer.device))
        fast = [part for part in net.modules() if isinstance(part, nn.TransformerEncoderLayer)]
        for layer in fast:  # the fast path reads dense weights: see `inference.network_modules.disable_fast_path`
            undo.callback(setattr, layer, "activation_relu_or_gelu", layer.activation_relu_or_gelu)
            layer.activation_relu_or_gelu = 0
        yield held


def _first(dense: dict[str, str]) -> str:
    name, reason = next(iter(dense.items()))
    return f"{name} {reason}"


def _sort_layers(net: nn.Module, masks: dict[str, Tensor], round: Round) -> tuple[list[str], dict[str, str]]:
    """Split the layers into those trained sparse and those that stay dense under masks (-> reason).

    Raises:
        InvalidSetting: a frozen or shared weight.
    """
    trained, dense = [], {}
    for name, sharing in sharing_layers(net, masks).items():
        layer = net.get_submodule(name)
        if type(layer) is not nn.Linear or not name:
            dense[name] = f"is {type(layer).__name__}"
        elif has_forward_hooks(layer):
            dense[name] = "has hooks"
        elif not (pattern := _pattern_of(name, round)).trains_sparse:
            dense[name] = f"is pruned by {pattern.name}"
        elif why := pattern.unsupported_reason((layer.out_features, layer.in_features), _final_sparsity(name, round)):
            dense[name] = f"cannot be divided: {why}"
        elif len(sharing) > 1:
            raise InvalidSetting(
                KEY, "sparse", f"trains each layer by itself, and {', '.join(sharing)} share a weight; use dense"
            )
        elif not layer.weight.requires_grad:
            raise InvalidSetting(KEY, "sparse", f"trains weights, and that of {name} is frozen; use dense")
        else:
            trained.append(name)
    return trained, dense


def _pattern_of(layer: str, round: Round) -> Pattern:
    return round.spec.pattern_of(layer, round.setup.pruning.pattern)


def _final_sparsity(layer: str, round: Round) -> float:
    """The end of the schedule, which fixes a layer's structure; masks on the way need not be expressible."""
    return round.spec.sparsity_of(layer, round.setup.pruning.sparsity)


def _replace(net: nn.Module, name: str, mask: Tensor, round: Round) -> nn.Linear:
    """Replace a layer by its trainable sparse version, which takes over its weight; returns the original layer."""
    linear = net.get_submodule(name)
    assert isinstance(linear, nn.Linear)
    pattern, shape = _pattern_of(name, round), (linear.out_features, linear.in_features)
    _, parameters = pattern.storage(shape, _final_sparsity(name, round))
    layer: Trainable
    try:
        if "block" in parameters:
            layer = TrainableBlockedLinear.from_masked(linear, mask, parameters["block"])
        else:
            layer = TrainableTilesLinear.from_masked(linear, mask)
    except ValueError as error:  # the masks were changed by the user
        raise InvalidSetting(
            KEY, "sparse", f"trains whole blocks, and the mask of {name} has others ({error}); use dense"
        ) from error
    layer.train(linear.training)
    net.set_submodule(name, layer)
    linear.weight.data, linear.weight.grad = linear.weight.new_empty(0), None  # free its memory meanwhile
    return linear


LARGEST_ERROR = {torch.bfloat16: 1e-2, torch.float16: 2e-3, torch.float32: 1e-4}


def _require_right(net: nn.Module, layers: list[str], dtype: torch.dtype, device: torch.device) -> None:
    """Raise InvalidSetting if the kernels' product or gradient of a layer differs from float64 on this GPU."""
    for name in layers if device.type == "cuda" else ():
        layer = net.get_submodule(name)
        error = layer.largest_error(dtype, device) if isinstance(layer, TrainableBlockedLinear) else 0.0
        if not error <= LARGEST_ERROR[dtype]:
            allowed = f"has kernels that are wrong on this GPU, by {error:.1e} of what {name} should give; use dense"
            raise InvalidSetting(KEY, "sparse", allowed)


@torch.no_grad()
def _restore(net: nn.Module, name: str, linear: nn.Linear) -> None:
    layer = net.get_submodule(name)
    assert isinstance(layer, Trainable)
    linear.weight.data = layer.dense_weight()
    linear.train(layer.training)
    net.set_submodule(name, linear.to(layer.weight.device))


class TrainedMasks(MaskedWeights):
    """The masks of all pruned layers, some of which are trained sparse.

    When a layer's mask changes, its parameter stays the same object with new values; optimizer state is remapped with it, and
    regrown weights start at zero. Checkpoints contain the masks that their weights belong to.

    Args:
        dense: layers trained dense under masks.
        trained: layer name -> mask [N, K] of the other layers, which are not replaced yet.
    Attributes:
        linears: layer name -> its original module.
    """

    def __init__(self, net: nn.Module, dense: Sequence[str], trained: Mapping[str, Tensor]) -> None:
        super().__init__(net, dense)
        self.linears: dict[str, nn.Linear] = {}
        self._net, self._trained, self._changed = net, dict(trained), False
        self._optimizers: list[torch.optim.Optimizer] = []

    def masks(self) -> dict[str, Tensor]:
        return super().masks() | self._trained

    def set(self, masks: dict[str, Tensor]) -> None:
        super().set({name: mask for name, mask in masks.items() if name not in self._trained})
        for name in self._trained:
            if name in masks:
                self._change(name, masks[name])

    def check(self) -> None:
        MaskedWeights(self._net, list(self._modules)).check()  # sparse layers hold no pruned weights

    def attach(self, optimizer: torch.optim.Optimizer) -> RemovableHandle:
        self._optimizers.append(optimizer)
        return super().attach(optimizer)

    def _change(self, name: str, mask: Tensor) -> None:
        mask = mask.view_as(self._trained[name]).to(self._trained[name].device)
        if torch.equal(mask, self._trained[name]):
            return
        layer = self._net.get_submodule(name)
        assert isinstance(layer, Trainable)
        states = [optimizer.state[layer.weight] for optimizer in self._optimizers if layer.weight in optimizer.state]
        places = [
            (state, key)
            for state in states
            for key, one in state.items()
            if isinstance(one, Tensor) and one.shape == layer.weight.shape
        ]
        changed = layer.change(mask, *(state[key] for state, key in places))
        for (state, key), one in zip(places, changed, strict=True):
            state[key] = one
        self._trained[name], self._changed = mask, True

    def making(self, make_masks: MakeMasks) -> MakeMasks:
        """Wrap a function that makes masks so that it sees the network with its original layers."""

        def make(sparsity: float, previous: LayerMasks | None) -> LayerMasks:
            layers = {name: self._net.get_submodule(name) for name in self.linears}
            for name, linear in self.linears.items():
                _restore(self._net, name, linear)
            try:
                return make_masks(sparsity, previous)
            finally:
                for name, linear in self.linears.items():
                    self._net.set_submodule(name, layers[name])
                    linear.weight.data = linear.weight.new_empty(0)  # as in `_replace`

        return make

    def hand_over(self, masked: MaskedWeights) -> None:
        """Set changed masks after the original layers are restored."""
        if self._changed:
            masked.set(self._trained)

    @contextmanager
    def in_checkpoints(self) -> Iterator[None]:
        """Context in which the network's state dict includes the masks, and loading one restores them."""

        def save(module: nn.Module, state: dict[str, Any], prefix: str, local_metadata: Any) -> None:
            state.update({f"{prefix}{name}.{MASK}": mask.cpu() for name, mask in self._trained.items()})

        def load(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
            for name in self._trained:
                self._change(name, state.pop(f"{prefix}{name}.{MASK}"))

        handles = self._net.register_state_dict_post_hook(save), self._net.register_load_state_dict_pre_hook(load)
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


WARM_UP, STEPS = 3, 5


def _choose(backend: Backend, round: Round, optimization: Optimization, *, quantize: bool) -> Backend:
    on_gpu = _has_kernels(round)
    if backend == "dense":
        return backend
    if backend == "sparse":
        if not on_gpu:
            log.warning("%s=sparse on a CPU runs the reference of the kernels: right, and not faster", KEY)
        elif reason := _kernels_unsupported_reason(round):
            raise InvalidSetting(KEY, backend, f"{reason}; use dense")
        return backend
    choice_file = None if round.resume_dir is None else round.resume_dir / CHOICE
    if choice_file is not None and choice_file.exists():
        return json.loads(choice_file.read_text(encoding="utf-8"))
    reason = backend_unsupported_reason(round.setup, quantize=quantize) if on_gpu else "runs no kernels on a CPU"
    reason = reason or _kernels_unsupported_reason(round)
    if reason is not None:
        log.info("%s=auto trains dense: backend sparse %s", KEY, reason)
        return "dense"
    chosen = _faster(round, optimization)
    if choice_file is not None and distributed.rank() == 0:
        choice_file.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(choice_file) as new:
            new.write_text(json.dumps(chosen), encoding="utf-8")
    return chosen


def _kernels_unsupported_reason(round: Round) -> str | None:
    """Why blocks cannot be trained on this device, or None; tiles work on any."""
    pattern = round.setup.pruning.pattern
    if not any(isinstance(part, BlockWise) for part in (pattern.parts if pattern.mixed else (pattern,))):
        return None
    return training_unsupported_reason(round.setup.trainer.product_dtype, torch.device(round.setup.trainer.device))


def _has_kernels(round: Round) -> bool:
    return round.setup.trainer.on_gpu


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _faster(round: Round, optimization: Optimization) -> Backend:
    """The backend with the faster step, as measured on rank 0. Weights, buffers and random states are restored."""
    device = torch.device(round.setup.trainer.device)
    net = round.net.to(device)
    state, drawn = {name: tensor.clone() for name, tensor in net.state_dict().items()}, random_state()
    loader = round.data.train_dataloader()
    generator = None if loader.generator is None else loader.generator.get_state()
    try:
        batches = list(itertools.islice(loader, WARM_UP + STEPS))
        dense = _step_seconds(round, optimization, round.masked, batches, device)
        with _convert(round) as masked:
            sparse = _step_seconds(round, optimization, masked, batches, device)
    except InvalidSetting as error:
        log.info("%s=auto trains dense: %s", KEY, error.allowed)
        return "dense"
    finally:
        net.load_state_dict(state)
        set_random_state(drawn)
        if generator is not None:
            loader.generator.set_state(generator)
    log.info("%s=auto: a step takes %.1f ms dense, %.1f ms sparse", KEY, 1e3 * dense, 1e3 * sparse)
    faster = distributed.broadcast(torch.tensor(sparse < dense, device=device))
    return "sparse" if faster else "dense"


def _step_seconds(
    round: Round, optimization: Optimization, masked: MaskedWeights, batches: list[Any], device: torch.device
) -> float:
    """Median seconds of a few steps: forward, backward, optimizer and masks; compiled and captured as in training if batch sizes
    repeat, and without a teacher.
    """
    task, net, trainer = round.make_task(None), round.net, round.setup.trainer
    optimizer = optimization.make_optimizer(net)
    masked.attach(optimizer)
    batches = [task.transfer_batch_to_device(batch, device, 0) for batch in batches]
    dtype, seconds = round.setup.trainer.product_dtype, []
    faster = trainer.faster_steps(tries=False)
    with keep_modes(net):
        if not net.training:
            net.train()
        for callback in faster:
            callback.on_train_start(None, task)
        try:
            for batch in itertools.islice(itertools.cycle(batches), WARM_UP + STEPS):
                _synchronize(device)
                start = time.perf_counter()
                with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
                    output = task.call(net, with_square_mask(task.net_inputs(batch), net))
                    loss = task.label_loss(output, batch)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                _synchronize(device)
                seconds.append(time.perf_counter() - start)
        finally:
            for callback in faster:
                callback.on_train_end(None, task)
    return statistics.median(seconds[WARM_UP:])
