"""`sf.to_pt2` and `sf.to_onnx`: programs that run without sparsefront and give the same outputs."""

import gc
import math
import re
import subprocess
import sys
import warnings
import zipfile
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import sparsefront_kernels
import torch
import transformers
from sparsefront_kernels import KernelEntry, registry
from sparsefront_kernels.stored_product import RECORD
from torch import nn
from torchvision.models import VisionTransformer
from torchvision.models.resnet import Bottleneck, ResNet

import sparsefront as sf
from sparsefront.errors import InvalidSetting
from sparsefront.inference.deploy import _position_limit, run_onnx

SIZES = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "vocab_size": 100,
}


def tokens(batch: int = 4, length: int = 16) -> dict[str, torch.Tensor]:
    mask = torch.ones(batch, length, dtype=torch.long)
    mask[0, length // 2 :] = 0
    return {"input_ids": torch.randint(0, 100, (batch, length)), "attention_mask": mask}


def bert(blocks: int = 1) -> nn.Module:
    return transformers.BertModel(transformers.BertConfig(**SIZES | {"num_hidden_layers": blocks}))


def llama() -> nn.Module:
    config = transformers.LlamaConfig(**SIZES | {"num_hidden_layers": 1}, num_key_value_heads=2)
    return transformers.LlamaForCausalLM(config)


def vit() -> nn.Module:
    return VisionTransformer(32, 8, num_layers=1, num_heads=4, hidden_dim=64, mlp_dim=128, num_classes=10)


def resnet() -> nn.Module:
    return ResNet(Bottleneck, [1, 1, 1, 1], width_per_group=16, num_classes=10)


class Tagger(nn.Module):
    """Text through an LSTM or GRU in both directions; attention_mask is not read."""

    def __init__(self, kind: type[nn.RNNBase] = nn.LSTM) -> None:
        super().__init__()
        self.embed, self.lstm = nn.Embedding(100, 64), kind(64, 64, bidirectional=True, batch_first=True)
        self.head = nn.Linear(128, 5)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(self.embed(input_ids))[0])


NETWORKS = {  # name -> network, pattern, precision, constant inputs
    "bert": (bert, "tile_wise", "none", {}),
    "llama": (llama, "element_wise", "none", {"use_cache": False}),
    "vit": (vit, "n_m", "none", {}),
    "resnet": (resnet, "block_wise", "none", {}),
    "bert_fp8": (bert, "n_m", "fp8", {}),
    "vit_int8": (vit, "n_m", "int8", {}),
    "lstm": (Tagger, "tile_wise", "none", {}),
    "lstm_one_length": (Tagger, "tile_wise", "none", {}),
    "gru": (partial(Tagger, nn.GRU), "n_m", "none", {}),
    "lstm_dense": (Tagger, None, "none", {}),
}
SERVER = """
import importlib, pkgutil, re, sys, warnings, torch, sparsefront_kernels
warnings.simplefilter("error")
warnings.filterwarnings("ignore", "The given buffer is not writable")  # of torch 2.11 itself
for name in sys.argv[2:]:
    run = sparsefront_kernels.load_pt2(f"{sys.argv[1]}/{name}.pt2")
    for inputs, expected in torch.load(f"{sys.argv[1]}/{name}.pt"):
        with torch.inference_mode():
            outputs = run(**inputs)
        outputs = [*outputs.values()] if isinstance(outputs, dict) else [outputs]
        assert len(outputs) == len(expected) and all(map(torch.equal, outputs, expected)), name
    print(name, not {"sparsefront", "transformers", "torchvision"} & sys.modules.keys())
ops = {name for name in torch._C._dispatch_get_all_op_names() if name.startswith("sparsefront::")}
for module in pkgutil.walk_packages(sparsefront_kernels.__path__, "sparsefront_kernels."):
    if not re.search("bench|build|training", module.name):
        importlib.import_module(module.name)
print(*{name for name in torch._C._dispatch_get_all_op_names() if name.startswith("sparsefront::")} - ops)
"""


def swapped(name: str) -> tuple[nn.Module, dict]:
    torch.manual_seed(0)
    build, pattern, precision, constants = NETWORKS[name]
    net = build().eval()
    inputs = {"x": torch.randn(4, 3, 32, 32)} if build in (vit, resnet) else tokens() | constants
    if pattern is None:
        return net, inputs
    settings = {"granularity": 16} if pattern in ("tile_wise", "block_wise") else {}
    masks = sf.prune(net, pattern=pattern, sparsity=0.5, example_inputs=inputs, **settings)
    assert sf.swap(net, masks, inputs, precision=precision).sparse_layer_share > 0.7
    assert precision == "none" or any(precision in getattr(layer, "kernel_name", "") for layer in net.modules())
    return net, inputs


def test_program_equals_network(tmp_path):
    for name in NETWORKS:
        net, inputs = swapped(name)
        length = (1, 64) if "input_ids" in inputs and name != "lstm_one_length" else None
        record = sf.to_pt2(net, inputs, tmp_path / f"{name}.pt2", batch=(1, 32), length=length)
        assert all(kernel.endswith("_reference") for kernel in record["kernels"] if kernel != "dense_linear")
        cases = []
        for batch, size in ((4, 16), (1, 16), (7, 5), (32, 1)):
            others = tokens(batch, size if length else 16)
            others = others if "input_ids" in inputs else {key: torch.randn(batch, 3, 32, 32) for key in inputs}
            with torch.inference_mode():
                outputs = net(**inputs | others)
            outputs = [*outputs.values()] if isinstance(outputs, dict) else [outputs]
            cases.append((others, outputs))
        torch.save(cases, tmp_path / f"{name}.pt")
    done = subprocess.run([sys.executable, "-c", SERVER, tmp_path, *NETWORKS], capture_output=True, text=True)
    assert done.stdout.split() == [word for name in NETWORKS for word in (name, "True")], (
        done.stdout + done.stderr[-2000:]
    )


def test_inputs_outside_the_range(tmp_path):
    net, inputs = swapped("bert")
    for limits, allowed in (
        *(((8, 64), "is (least, most) around the example's own 4"), ((1, 3), "is (least, most) around")),
        *((other, "is (least, most), two whole numbers") for other in ((0, 8), 8, (1, 8, 64), (1.0, 8.0))),
    ):
        with pytest.raises(InvalidSetting, match=f"^batch=.*: {re.escape(allowed)}"):
            sf.to_pt2(net, inputs, tmp_path / "a.pt2", batch=limits)
    for call, message in (
        (lambda: sf.to_pt2(net, inputs, tmp_path / "a.onnx"), r"path=.*a\.onnx: is a file \*\.pt2"),
        (lambda: sf.to_pt2(net, inputs, None), "path=None: is a path"),
        (
            lambda: sf.to_pt2(net, tokens(1), tmp_path / "a.pt2", batch=(1, 8)),
            "batch=.*: needs an example of 2 or more",
        ),
        (
            lambda: sf.to_pt2(net, {"input_ids": torch.ones(2, 4)}, tmp_path / "a.pt2"),
            "example_inputs=.*cannot be called",
        ),
        (
            lambda: sf.to_onnx(bert(), {"input_ids": torch.ones(2, 4)}, tmp_path / "a.onnx"),
            "example_inputs=.*cannot be",
        ),
        (
            lambda: sf.to_onnx(nn.Linear(2, 2), (torch.ones(2, 2),), tmp_path / "a.onnx", opset=3),
            "opset=3: .*: give 18",
        ),
    ):
        with pytest.raises(InvalidSetting, match=f"^{message}"):
            call()
    assert not list(tmp_path.iterdir())
    before = {name: entry._entry for name, entry in net.named_modules() if hasattr(entry, "_entry")}
    sf.to_pt2(net, inputs, tmp_path / "a.pt2", batch=(2, 8))
    assert before == {name: entry._entry for name, entry in net.named_modules() if hasattr(entry, "_entry")}
    assert not [name for name, _ in net.named_buffers() if "stored_" in name], "the network is as before"
    run = sparsefront_kernels.load_pt2(tmp_path / "a.pt2")
    for wrong, message in (
        (tokens(9), r"^input_ids: \[9, 16\] is outside of \[2 to 8, 16\], for which this file was made$"),
        (tokens(4, 17), r"^input_ids: \[4, 17\] is outside of \[2 to 8, 16\]"),
        (
            tokens() | {"ids": tokens()["input_ids"]},
            "^ids: no input of this file, which has input_ids, attention_mask$",
        ),
        ({"ids": tokens()["input_ids"]}, r"a\.pt2: takes input_ids, attention_mask, each once, not ids$"),
        ({}, "each once, not nothing$"),
        (
            tokens() | {"attention_mask": tokens()["input_ids"].int()},
            "^attention_mask: torch.int32 on cpu is not torch.int64",
        ),
        (tokens() | {"attention_mask": None}, "^attention_mask: NoneType is not torch.int64 on cpu"),
    ):
        with pytest.raises(ValueError, match=message):
            run(**wrong)
    ids, mask = tokens().values()
    for positional, named in (((ids,), {"input_ids": ids}), ((ids, mask, mask), {}), ((ids,), {})):
        with pytest.raises(ValueError, match="takes input_ids, attention_mask, each once, not input_ids"):
            run(*positional, **named)
    expected = run(input_ids=ids, attention_mask=mask)
    for outputs in (run(ids, mask), run(ids, attention_mask=mask)):
        assert all(torch.equal(outputs[name], expected[name]) for name in expected)


@pytest.mark.parametrize(
    ("layer", "why"),
    [(partial(nn.RNN), "lstm (an RNN)"), (partial(nn.LSTM, proj_size=32), "lstm (an LSTM with projections")],
)
def test_networks_of_one_length(tmp_path, layer, why):
    net = Tagger(layer).eval()
    net.head = nn.Identity()
    with pytest.raises(
        InvalidSetting, match=rf"^length=\(1, 64\): is fixed by {re.escape(why)}.*: give None, a file a length"
    ):
        sf.to_pt2(net, tokens(), tmp_path / "a.pt2", length=(1, 64))
    assert type(net.lstm) is layer.func and not list(tmp_path.iterdir())


def branches(x: torch.Tensor) -> torch.Tensor:
    return x.relu() if x.sum() > 0 else x


class Branching(nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return branches(super().forward(input))


@pytest.mark.parametrize("write", [sf.to_pt2, sf.to_onnx], ids=["pt2", "onnx"])
def test_data_dependent_flow_is_one_line(tmp_path, write, capfd):
    net = nn.Sequential(Branching(8, 8)).train()
    with pytest.raises(
        InvalidSetting, match="^net=Sequential: torch.* does not take it .GuardOnDataDependentSymNode: .*"
    ) as raised:
        write(net, (torch.randn(2, 8),), tmp_path / f"a.{write.__name__[3:]}", batch=(1, 8))
    assert "\n" not in str(raised.value) and capfd.readouterr() == ("", "") and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        (lambda batch, length: length > 8, "length=(1, 64): torch.export's program only takes 9 to 64: give that"),
        (lambda batch, length: length < 40, "length=(1, 64): torch.export's program only takes 1 to 39: give that"),
        (lambda batch, length: length == 16, "length=(1, 64): torch.export's program only takes 16: give None"),
        (lambda batch, length: length % 2 == 0, "net=Sequential: torch.export does not take it (.*shape[1], 2), 0))"),
        (lambda batch, length: batch * length < 99, "net=Sequential: torch.export does not take it (.*shape[1] < 99)"),
        (lambda batch, length: min(16 * length, 32 * length) == 16 * length, None),
    ],
)
def test_branches_on_sizes(tmp_path, condition, message):
    class BySize(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return super().forward(input).relu() if condition(*input.shape[:2]) else input

    net, x = nn.Sequential(BySize(8, 8)).eval(), torch.randn(4, 16, 8)
    write = partial(sf.to_pt2, net, (x,), tmp_path / "a.pt2", batch=(1, 32), length=(1, 64))
    if message is None:
        write()
        return
    with pytest.raises(InvalidSetting, match=f"^{re.escape(message).replace(re.escape('.*'), '.*')}$"):
        write()
    assert not list(tmp_path.iterdir())


def test_fused_encoder_layers_are_exported(tmp_path):
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    net, x = nn.TransformerEncoder(layer, 2).eval(), torch.randn(2, 8, 32)
    sf.to_pt2(net, (x,), tmp_path / "a.pt2", batch=(1, 8))
    assert torch.backends.mha.get_fastpath_enabled()
    torch.testing.assert_close(sparsefront_kernels.load_pt2(tmp_path / "a.pt2")(x), net(x))


@pytest.mark.parametrize(
    ("family", "table", "most"),
    [("Bert", "embeddings.position_embeddings", 20), ("Roberta", "embeddings.position_embeddings", 18)]
    + [("GPT2", "wpe", 20), ("OPT", "decoder.embed_positions", 20), ("Llama", None, None)],
)
def test_length_beyond_the_positions(tmp_path, family, table, most):
    sizes = {**SIZES, "max_position_embeddings": 20, "num_key_value_heads": 4, "ffn_dim": 64, "word_embed_proj_dim": 64}
    sizes |= {"pad_token_id": 1} if family == "Roberta" else {}
    net = getattr(transformers, f"{family}Model")(getattr(transformers, f"{family}Config")(**sizes)).eval()
    assert _position_limit(net) == ((math.inf, "") if table is None else (most, table))
    if table is None:
        return
    message = rf"^length=\(1, {most + 1}\): goes up to {most + 1} tokens, and {table} of the network holds {most}$"
    with pytest.raises(InvalidSetting, match=message):
        sf.to_pt2(net, tokens(), tmp_path / "a.pt2", length=(1, most + 1))


def test_program_of_another_machine(tmp_path, monkeypatch):
    """One error that names both, before anything is loaded; what was made on a CPU runs on the CPU of any machine."""
    (tmp_path / "cut.pt2").write_bytes(b"PK")
    with pytest.raises(ValueError, match=r"cut\.pt2: not written by sf\.to_pt2, or cut off"):
        sparsefront_kernels.load_pt2(tmp_path / "cut.pt2")
    net, x = nn.Linear(8, 8).eval(), torch.randn(2, 8)
    sf.to_pt2(net, (x,), tmp_path / "a.pt2")
    monkeypatch.setattr(torch.export, "load", lambda *_, **__: pytest.fail("loads"))
    with monkeypatch.context() as patch:
        patch.setattr(torch, "__version__", "9.9.9")
        with pytest.raises(
            ValueError, match=r"a\.pt2: made on cpu with torch .*, and here is cpu with torch 9\.9\.9: "
        ):
            sparsefront_kernels.load_pt2(tmp_path / "a.pt2")
    with zipfile.ZipFile(tmp_path / "a.pt2") as whole, zipfile.ZipFile(tmp_path / "gpu.pt2", "w") as other:
        for name in whole.namelist():
            content = whole.read(name)
            other.writestr(name, content.replace(b'"cpu"', b'"NVIDIA H200"') if name.endswith(RECORD) else content)
    for gpus, here in (([], "no GPU"), (["NVIDIA A100"], "NVIDIA A100")):
        monkeypatch.setattr(torch.cuda, "device_count", lambda gpus=gpus: len(gpus))
        monkeypatch.setattr(torch.cuda, "get_device_name", gpus.__getitem__)
        with pytest.raises(ValueError, match=rf"gpu\.pt2: made on NVIDIA H200 with torch .*, and here is {here} with"):
            sparsefront_kernels.load_pt2(tmp_path / "gpu.pt2")


def test_packed_weight_dies_with_its_program(tmp_path):
    from sparsefront_kernels import stored_product

    net, inputs = swapped("vit")
    sf.to_pt2(net, inputs, tmp_path / "a.pt2")
    run = sparsefront_kernels.load_pt2(tmp_path / "a.pt2")
    run(**inputs)
    del run
    gc.collect()
    assert any(reference.expired() for reference, _ in stored_product._PACKED.values())
    sparsefront_kernels.load_pt2(tmp_path / "a.pt2")(**inputs)
    assert not any(reference.expired() for reference, _ in stored_product._PACKED.values())


def test_kernels_depend_on_rows(tmp_path, monkeypatch):
    """Two made-up kernels, one fast for few rows and one for many; the layer's own runs the example's rows."""
    calls = []

    def made_up(name: str) -> KernelEntry:
        def product(x: torch.Tensor, *operands, **settings) -> torch.Tensor:
            calls.append(name)
            return reference.product(x, *operands, **settings)

        return replace(reference, name=name, product=product, is_reference=False)

    reference = sparsefront_kernels.reference("gathered")
    names = {"gathered_few": lambda rows: rows, "gathered_many": lambda rows: 20.0}
    for name in names:
        monkeypatch.setitem(registry._ENTRIES, name, made_up(name))

    def time_layer(module: nn.Module, x: torch.Tensor) -> SimpleNamespace:
        return SimpleNamespace(latency_us=names.get(module.kernel_name, lambda rows: 100.0)(len(x)))

    monkeypatch.setattr("sparsefront.inference.deploy.time_layer", time_layer)
    net, x = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)).eval(), torch.randn(8, 64)
    masks = sf.prune(net, pattern="tile_wise", sparsity=0.5, granularity=16)
    sf.swap(net, masks, (x,), kernel="reference")
    record = sf.to_pt2(net, (x,), tmp_path / "a.pt2", batch=(1, 64), kernels_by_rows=True)
    parts = ("gathered_few", "8:gathered_reference", "9:gathered_few", "32:gathered_many")
    assert record["kernels_by_rows"] == ["|".join(parts)]
    run = sparsefront_kernels.load_pt2(tmp_path / "a.pt2")
    calls.clear()
    for rows in (1, 7, 8, 9, 31, 32, 64):
        x = torch.randn(rows, 64)
        torch.testing.assert_close(run(input=x), net(x))
    assert calls == ["gathered_few"] * 4 + ["gathered_many"] * 2


PATTERNS = {"2:4": "n_m", "depth": "depth", "width": sf.patterns.Channel(axis="width")}


@pytest.mark.parametrize("pattern", PATTERNS)
def test_onnx_of_dense_networks_equals_pytorch(tmp_path, pattern):
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    torch.manual_seed(0)
    net, inputs = bert(blocks=2).eval(), tokens()
    masks = sf.prune(net, pattern=PATTERNS[pattern], sparsity=0.5, example_inputs=inputs)
    zeros = sum(int((mask == 0).sum()) for mask in masks.values())
    if pattern == "width":
        sf.narrow(net, masks)
    record = sf.to_onnx(net, inputs, tmp_path / "a.onnx", batch=(1, 64), length=(1, 128))
    others = tokens(7, 33)
    with torch.inference_mode():
        expected = net(**others)
    for actual, wanted in zip(run_onnx(tmp_path / "a.onnx", others), expected.values(), strict=True):
        torch.testing.assert_close(actual, wanted, rtol=1e-4, atol=1e-4)
    model = onnx.load(tmp_path / "a.onnx")
    assert record["opset"] == model.opset_import[0].version == 18
    dims = {entry.name: [dim.dim_param for dim in entry.type.tensor_type.shape.dim] for entry in model.graph.input}
    assert dims == dict.fromkeys(tokens(), ["batch", "length"])
    weights = [onnx.numpy_helper.to_array(one) for one in model.graph.initializer if len(one.dims) == 2]
    assert pattern != "2:4" or sum(int((weight == 0).sum()) for weight in weights) >= zeros


def test_onnx_refuses_unused_zeros(tmp_path):
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)).eval()
    masks, x = sf.prune(net, pattern="tile_wise", sparsity=0.5, granularity=16), torch.randn(2, 64)
    with pytest.raises(InvalidSetting, match=r"^net=0: has zeros that are neither .* nor 2:4.*sf\.to_pt2$"):
        sf.to_onnx(net, (x,), tmp_path / "a.onnx")
    sf.swap(net, masks, (x,))
    with pytest.raises(InvalidSetting, match="^net=Sequential: was swapped already"):
        sf.to_onnx(net, (x,), tmp_path / "a.onnx")


def test_compiled_program_agrees(tmp_path):
    """AOTInductor rounds differently; it needs a C++ compiler."""
    net, x = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)).eval(), torch.randn(64, 2).t()
    sf.swap(net, sf.prune(net, pattern="tile_wise", sparsity=0.5, granularity=16), (x,))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            sf.to_pt2(net, (x,), tmp_path / "a.pt2", batch=(1, 8), compiled=True)
        except InvalidSetting as error:
            pytest.skip(str(error))
    run = sparsefront_kernels.load_pt2(tmp_path / "a.pt2")
    for x in (torch.randn(5, 64), torch.randn(64, 5).t(), torch.randn(1, 64).expand(5, 64)):
        with torch.inference_mode():
            torch.testing.assert_close(run(input=x), net(x))


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["none", "fp8", "int8"])
@pytest.mark.parametrize("pattern", ["tile_wise", "n_m", "block_wise", "element_wise", "lstm"])
def test_program_equals_network_on_gpu(tmp_path, pattern, precision):
    """Kernels, fused epilogues and norms alike; a program stays on the GPU's own kernels when it is loaded."""
    torch.manual_seed(0)
    sizes = SIZES | {"hidden_size": 256, "intermediate_size": 512}
    lstm = pattern == "lstm"
    net = (Tagger() if lstm else transformers.BertModel(transformers.BertConfig(**sizes))).eval()
    net, inputs = net.to("cuda", torch.float16), {name: value.cuda() for name, value in tokens(8, 64).items()}
    settings = {"tile_wise": {"granularity": 64}, "block_wise": {"granularity": 128}, "lstm": {"granularity": 64}}
    pruned = {"pattern": "tile_wise" if lstm else pattern, "sparsity": 0.5, **settings.get(pattern, {})}
    masks = sf.prune(net, example_inputs=inputs, **pruned)
    sf.swap(net, masks, inputs, kernel="sparse", precision=precision, seconds=15)
    one_length = lstm and precision != "none"
    limits = {"batch": (1, 32), "length": None if one_length else (1, 128)}
    record = sf.to_pt2(net, inputs, tmp_path / "a.pt2", **limits)
    assert record["kernels"] and not any(name.endswith("_reference") for name in record["kernels"])
    run = sparsefront_kernels.load_pt2(tmp_path / "a.pt2")
    for batch, length in ((8, 64), (1, 64)) if one_length else ((8, 64), (1, 64), (32, 128), (3, 17)):
        others = {name: value.cuda() for name, value in tokens(batch, length).items()}
        with torch.inference_mode():
            outputs, expected = run(**others), net(**others)
        pairs = [(outputs, expected)] if lstm else [(outputs[name], expected[name]) for name in outputs]
        assert all(torch.equal(*pair) for pair in pairs), (batch, length)
