"""On a GPU: networks in fp8 and int8, their kernels chosen by time, in compiled code and CUDA graphs, and built again."""

import copy

import pytest
import torch

import sparsefront as sf
from sparsefront.data.base import DataInfo
from sparsefront.errors import InvalidSetting
from sparsefront.inference.fusion.block_pass import make_dense_graph
from sparsefront.inference.fusion.fused_product import FusedProduct
from sparsefront.inference.fusion.placement import QuantizesOutput
from sparsefront.inference.precision import activation_amax, emulation
from sparsefront.inference.swap import load_sparse, save_choices
from sparsefront.measure.correctness import LOW_PRECISION_ERROR_LIMIT, output_error
from sparsefront.measure.execution_mode import fastest_execution_mode
from sparsefront.models.bert import Bert

pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda")
INFO = DataInfo("sequence_classification", 64, sequence_length=128)


@pytest.fixture
def case():
    """(dense network, inputs), in fp16."""
    torch.manual_seed(0)
    net = Bert(size="tiny").build(INFO).eval().to(CUDA, torch.float16)
    return net, {"input_ids": torch.randint(0, 8000, (8, 128), device=CUDA)}


@torch.inference_mode()
def apart(one, other, inputs):
    return output_error(one(**inputs), other(**inputs))


@pytest.mark.parametrize("precision", ["fp8", "fp8_static", "int8"])
def test_dense_graph_in_every_mode(precision, case):
    net, inputs = case
    ranges = activation_amax(net, [inputs]) if precision == "fp8_static" else None
    fused = make_dense_graph(net, inputs, precision, ranges)
    kernels = {part.kernel_name for part in fused.modules() if isinstance(part, FusedProduct)}
    assert kernels == {f"dense_{precision.removesuffix('_static')}"}
    assert apart(fused, net, inputs) < 0.1
    with torch.inference_mode(), emulation(fused):
        emulated = fused(**inputs)
    with torch.inference_mode():
        assert output_error(fused(**inputs), emulated) < 0.05
    modes = ["eager", "cuda_graph", "compile", "compile_cuda_graph"]
    fastest = fastest_execution_mode(fused, inputs, execution_modes=modes, device=CUDA, dtype=torch.float16)
    assert not fastest.not_timed


@pytest.mark.parametrize("kernel", ["auto", "blocked_fp8_sm90"])
def test_blocks_are_swapped_and_built_again(kernel, case, tmp_path):
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("blocks in fp8 need Hopper")
    net, inputs = case
    layers = Bert(size="tiny").prunable(net)
    masks = sf.prune(net, "block_wise", 0.75, granularity="64x128", layers=layers, tell=lambda line: None)
    export = sf.save(tmp_path / "export", net, masks)
    swapped = copy.deepcopy(net)
    settings = sf.Measure(execution_modes=["eager", "cuda_graph"], variants=["fused_graph"])
    report = sf.swap(swapped, masks, inputs, kernel=kernel, packed=export, precision="fp8", settings=settings)
    assert report.quantization_error is None or report.quantization_error < LOW_PRECISION_ERROR_LIMIT
    if kernel != "auto":
        assert set(report.kernels) == {kernel}
        assert sum(isinstance(part, QuantizesOutput) for part in swapped.modules()) == 2
    save_choices(report, tmp_path / "export")
    again = Bert(size="tiny").build(INFO).eval()
    where = {"device": CUDA, "dtype": torch.float16}
    loaded = load_sparse(again, tmp_path / "export", inputs, **where).plan
    # blocks that were faster as they are stay so; that they were compared is known to the first swap alone
    assert (loaded.blocks, loaded.precision) == (report.plan.blocks, report.plan.precision)
    assert apart(again, swapped, inputs) < 0.05


def test_beside_float32_nothing_is_quantised(case):
    net, inputs = case
    with pytest.raises(InvalidSetting, match="precision=fp8: runs beside fp16 or bf16"):
        sf.swap(net.float(), {"bert.pooler.dense": torch.ones(128, 128, dtype=torch.bool)}, inputs, precision="fp8")
