"""Networks in fp8 and int8 compute what their weights and activations give after quantisation, each layer listed."""

import copy
from dataclasses import replace

import pytest
import torch
from sparsefront_kernels import entry
from torch import Tensor, nn
from torch.nn import functional

import sparsefront as sf
from sparsefront.data.base import DataInfo
from sparsefront.inference.fusion.block_pass import make_dense_graph, rewrite_dense
from sparsefront.inference.fusion.fused import FusedBlock
from sparsefront.inference.fusion.fused_product import FusedCorrectnessCheck, FusedProduct
from sparsefront.inference.fusion.placement import Quantizes, QuantizesOutput
from sparsefront.inference.fusion.prepared_block import ProductSpec
from sparsefront.inference.fusion.sites import ProductWeight
from sparsefront.inference.precision import HEAD_IN_16_BITS, Precision, activation_amax, explain_refusal
from sparsefront.inference.swap import load_sparse, save_choices
from sparsefront.measure.correctness import output_error
from sparsefront.measure.variants import DoesNotApply
from sparsefront.models.bert import Bert

LOW = ["fp8", "fp8_static", "int8"]
CLOSE = 0.01  # values between two steps are rounded to either: sums in another order differ by 1e-7, what comes of it by more
INFO = DataInfo("sequence_classification", 64, sequence_length=16)
TOKENS = {
    "input_ids": torch.randint(0, 8000, (3, 16), generator=torch.Generator().manual_seed(0)),
    "attention_mask": (torch.arange(16) < torch.tensor([[16], [9], [4]])).long(),
}


def quantised(x: Tensor, precision: str, group: int, amax: float | None = None) -> Tensor:
    """Quantised and dequantised, with a scale per row and group or from a given range: not the code of the kernels."""
    largest = 127.0 if precision == "int8" else 448.0
    groups = x.reshape(-1, x.shape[-1] // group, group)
    scale = groups.abs().amax(-1, keepdim=True) / largest if amax is None else torch.tensor(amax / largest)
    scaled = (groups / torch.where(scale == 0, 1, scale)).clamp(-largest, largest)
    rounded = scaled.round() if precision == "int8" else scaled.to(torch.float8_e4m3fn).float()
    return (rounded * scale).view(x.shape)


class Emulated(nn.Linear):
    """A Linear of quantised operands."""

    @classmethod
    def of(cls, layer, precision, amax, grouped):
        made = copy.copy(layer)
        made.__class__ = cls
        made.precision, made.amax, made.grouped = precision, amax, grouped
        return made

    def forward(self, x):
        inputs, precision = x.shape[-1], self.precision.removesuffix("_static")
        x = quantised(x, precision, 128 if self.grouped else inputs, self.amax)
        return functional.linear(x, quantised(self.weight, precision, inputs), self.bias)


def emulation(net, names, precision, ranges=None, grouped=()):
    emulated = copy.deepcopy(net)
    for name in names:
        amax = (ranges or {}).get(name) if precision == "fp8_static" else None
        made = Emulated.of(emulated.get_submodule(name), precision, amax, name in grouped)
        emulated.set_submodule(name, made)
    return emulated


def linears(net):
    return [name for name, module in net.named_modules() if isinstance(module, nn.Linear)]


class Mlp(nn.Module):
    """Its second layer is too narrow for 8 bits, and the last one gives the output."""

    def __init__(self):
        super().__init__()
        self.first, self.narrow = nn.Linear(256, 128), nn.Linear(128, 24)
        self.wide, self.last = nn.Linear(128, 256, bias=False), nn.Linear(256, 32)

    def forward(self, x):
        hidden = self.first(x).relu()
        return self.last(self.wide(hidden).relu() + self.narrow(hidden).mean(-1, keepdim=True))


class Residual(nn.Module):
    """The Linear that is called last does not give the output, which two others do."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(32, 32), nn.Linear(32, 32)
        self.start, self.end = nn.Linear(32, 16), nn.Linear(32, 16)

    def forward(self, x):
        y = self.first(x).relu()
        return self.start(y), self.end(y), x + self.last(y)


@pytest.fixture
def mlp():
    torch.manual_seed(0)
    return Mlp().eval(), {"x": torch.randn(40, 256)}


@pytest.fixture
def bert():
    torch.manual_seed(0)
    return Bert(size="tiny").build(INFO).eval()


def blocked(net, granularity="64x128"):
    """Masks of blocks, of the Linears of all encoder blocks, whose weights are zero now."""
    layers = Bert(size="tiny").prunable(net)
    return sf.prune(net, "block_wise", 0.5, granularity=granularity, layers=layers, tell=lambda line: None)


def ranges_of(net, inputs, precision):
    return activation_amax(net, [inputs]) if precision == "fp8_static" else None


@torch.inference_mode()
def apart(one, other, inputs):
    return output_error(one(**inputs), other(**inputs))


@pytest.mark.parametrize("precision", LOW)
def test_the_dense_graph_multiplies_quantised_operands(precision, bert):
    ranges = ranges_of(bert, TOKENS, precision)
    fused = make_dense_graph(bert, TOKENS, precision, ranges)
    kernels = {part.kernel_name for part in fused.modules() if isinstance(part, FusedProduct)}
    assert kernels == {f"dense_{precision.removesuffix('_static')}_reference"}
    assert not any(block.feature_major for block in fused.modules() if isinstance(block, FusedBlock))
    output_scales = sum(isinstance(part, QuantizesOutput) for part in fused.modules())
    assert output_scales == (2 if precision == "fp8" else 0)
    names = [name for name in linears(bert) if name != "classifier"]
    expected = emulation(bert, names, precision, ranges)
    assert apart(fused, expected, TOKENS) < CLOSE < apart(fused, bert, TOKENS) * (1 if precision != "int8" else 10)


@pytest.mark.parametrize("precision", LOW)
def test_network_without_blocks_is_quantized(precision, mlp):
    net, inputs = mlp
    ranges = ranges_of(net, inputs, precision)
    fused = make_dense_graph(net, inputs, precision, ranges)
    assert apart(fused, emulation(net, ["first", "wide"], precision, ranges), inputs) < CLOSE
    for given in (nn.Conv2d(3, 8, 3).eval(), nn.Sequential(nn.Linear(16, 16)).eval()):
        with pytest.raises(DoesNotApply):
            make_dense_graph(given, {"input": torch.randn(2, 3, 16, 16)}, precision)


def test_blocks_run_in_fp8(bert):
    masks = blocked(bert)
    net = copy.deepcopy(bert)
    report = sf.swap(net, masks, TOKENS, precision="fp8")
    assert set(report.kernels) == {"blocked_fp8_reference"}
    inside = [name for name in linears(bert) if ".layer." in name]
    assert report.low_precision_layers == dict.fromkeys([*inside, "bert.pooler.dense"], "fp8") | {
        "classifier": HEAD_IN_16_BITS
    }
    assert sum(isinstance(part, QuantizesOutput) for part in net.modules()) == 2
    assert sum(isinstance(part, Quantizes) and part.alone for part in net.modules()) == 2  # what attention gives
    down = [name for name in inside if name.endswith("output.dense") and "attention" not in name]
    expected = emulation(bert, [name for name in linears(bert) if name != "classifier"], "fp8", grouped=down)
    assert apart(net, expected, TOKENS) < CLOSE < report.quantization_error < 0.1
    errors = [layer.quantization_error for layer in report.layers.values()]
    assert 0.005 < min(errors) and max(errors) < 0.1
    assert all(block.quantization_error > block.relative_error for block in report.fusion.blocks.values())
    assert "13 of 14 layers run in fp8" in str(report)
    assert report.to_json()["precision"] == "fp8"


@pytest.mark.parametrize(
    ("precision", "granularity", "reason"),
    [
        ("int8", None, "no kernel runs weights stored as csr in int8"),
        ("fp8", 32, "takes blocks"),
        ("fp8_static", "64x128", "calibration has no finite range for"),
    ],
)
def test_layers_without_a_kernel(precision, granularity, reason, bert):
    if granularity is None:
        masks = sf.prune(bert, "element_wise", 0.5, layers=Bert(size="tiny").prunable(bert), tell=len)
    else:
        masks = blocked(bert, granularity)
    report = sf.swap(copy.deepcopy(bert), masks, TOKENS, precision=precision)
    assert set(report.kernels) == {"blocked_reference" if granularity else "csr_reference"}
    assert all(report.low_precision_layers[name].startswith(reason) for name in masks)


@pytest.mark.parametrize("precision", LOW)
@pytest.mark.parametrize("fuse", [True, False])
def test_what_was_chosen_is_built_again(precision, fuse, bert, tmp_path):
    masks = blocked(bert)
    export = sf.save(tmp_path / "export", bert, masks)
    ranges = ranges_of(bert, TOKENS, precision)
    net = copy.deepcopy(bert)
    choice = sf.KernelChoice(fuse=fuse)
    report = sf.swap(net, masks, TOKENS, kernel=choice, packed=export, precision=precision, calibration=ranges)
    save_choices(report, tmp_path / "export")
    again = Bert(size="tiny").build(INFO).eval()
    where = {"device": torch.device("cpu"), "dtype": torch.float32}
    assert load_sparse(again, tmp_path / "export", TOKENS, **where).plan == report.plan
    assert apart(again, net, TOKENS) == 0


def test_a_linear_network_lists_every_layer(mlp):
    net, inputs = mlp
    net.wide.weight.data[torch.rand(256, 128) < 0.5] = 0
    masks = {"wide": net.wide.weight.data != 0}
    before = copy.deepcopy(net)
    report = sf.swap(net, masks, inputs, precision="fp8")
    assert report.low_precision_layers["first"] == "fp8" and HEAD_IN_16_BITS in report.low_precision_layers["last"]
    assert "multiples of 16" in report.low_precision_layers["narrow"]
    assert "at most 2 of 4 are allowed" in report.low_precision_layers["wide"]
    assert report.plan.layers["first"] == "dense_fp8_reference"
    assert apart(net, emulation(before, ["first"], "fp8"), inputs) < CLOSE
    whole = sf.swap(before, {"wide": torch.ones(256, 128, dtype=torch.bool)}, inputs, precision="int8")
    assert (
        whole.layers["wide"].kernel == "dense_int8_reference" and whole.dense_layers["wide"] == "it keeps every weight"
    )


def test_heads_stay_in_16_bits():
    reasons = rewrite_dense(Residual().eval(), {"x": torch.randn(4, 32)}, Precision("fp8"))
    assert reasons == {"first": "fp8", "last": "fp8", "start": HEAD_IN_16_BITS, "end": HEAD_IN_16_BITS}


def test_ranges_of_all_batches(mlp):
    net, inputs = mlp
    ranges = activation_amax(net, [inputs, {"x": torch.full((1, 256), 9.0)}])
    assert ranges["first"] == 9.0 and set(ranges) == {"first", "narrow", "wide", "last"}
    assert "no finite range for first" in str(
        Precision("fp8_static", {"first": float("inf")}).explain_16_bits(["first"], (128, 256), torch.float32)
    )


def test_a_wrong_kernel_is_refused():
    torch.manual_seed(0)
    weight = torch.randn(128, 256)
    spec = ProductSpec(
        ProductWeight(("layer",), (128,), weight, torch.randn(128)), "gelu", False, False, False, False, 1.0
    )
    check = FusedCorrectnessCheck(spec, 8, feature_major=False)
    mask = torch.ones_like(weight, dtype=torch.bool)
    right = entry("blocked_fp8_reference")

    def product_by(kernel):
        from sparsefront_kernels import FORMATS

        stored = FORMATS["blocked"].from_dense(weight, mask, block=[64, 128])
        return FusedProduct(kernel, stored, spec.weight.bias, activation="gelu")

    def doubled(x, *operands, **epilogue):
        made = right.quantized_run(x, *operands, **epilogue)
        return made._replace(values=(made.values.float() * 1.5).to(made.values.dtype))

    def beside(x, *operands, **epilogue):
        return right.product(x, *operands, **epilogue) * 1.01

    assert check.evaluate(product_by(right))[1] is None
    assert 0.01 < check.quantization_error(product_by(right)) < 0.1
    assert "a step beside" in check.evaluate(product_by(replace(right, quantized_run=doubled)))[1]
    assert "relative error" in check.evaluate(product_by(replace(right, product=beside)))[1]


def test_gpu_needs_16_bits(monkeypatch):
    gpu = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "A100")
    assert explain_refusal("fp8", torch.device("cpu"), torch.float32) is None
    assert explain_refusal("none", gpu, torch.float32) is None
    assert "fp16 or bf16" in str(explain_refusal("int8", gpu, torch.float32))
    assert explain_refusal("int8", gpu, torch.float16) is None
    assert "8.9 or more, not 8.0 of A100" in str(explain_refusal("fp8_static", gpu, torch.float16))
