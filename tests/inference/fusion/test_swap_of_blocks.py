"""The swap rewrites blocks: its report knows every layer, shares stay right, a plan is kept."""

import copy
import io

import pytest
import torch

from sparsefront.data.base import DataInfo
from sparsefront.inference.choice import KernelChoice
from sparsefront.inference.fusion.fused import FusedBlock
from sparsefront.inference.swap import load_sparse, save_choices, swap_layers
from sparsefront.measure.correctness import output_error
from sparsefront.measure.problems import observe_problems
from sparsefront.models.bert import Bert
from sparsefront.patterns.tile_wise import TileWise

INFO = DataInfo("sequence_classification", 2, sequence_length=16)
IDS = torch.randint(0, 8000, (2, 12), generator=torch.Generator().manual_seed(0))
AUTO = KernelChoice()
TOKENS = {"input_ids": IDS, "attention_mask": (torch.arange(12) < torch.tensor([[12], [7]])).long()}


@pytest.fixture
def case(exported):
    """(masked net, export) with the pooler pruned too, which is in no block."""
    model = Bert(size="tiny", prune_head=True)
    masked = model.build(INFO).eval()
    layers = [name for name in model.prunable(masked) if name != "classifier"]
    return masked, exported(masked, TileWise(32), 0.5, layers)


def swapped(case, choice=AUTO, **options):
    masked, export = case
    problems = observe_problems(masked, TOKENS, export.manifest.layers)
    net = copy.deepcopy(masked)
    options = {"device": torch.device("cpu"), "dtype": torch.float32, "inputs": TOKENS} | options
    return net, swap_layers(net, export, problems, choice, **options)


def test_every_pruned_layer_is_reported(case):
    masked, export = case
    net, report = swapped(case)
    assert set(report.layers) == set(export.manifest.layers)
    assert report.kernels == {"gathered_reference": 13} and report.dense_layers == {}
    assert (report.sparse_layer_share, report.sparse_flops_share) == (1.0, 1.0)
    assert all(isinstance(block, FusedBlock) for block in net.bert.encoder.layer)
    query = report.layers["bert.encoder.layer.0.attention.self.query"]
    assert "query+key+value" in query.notes["gathered_reference"] and query.relative_error < 4e-6
    content = report.to_json()
    assert sum(content["fused_blocks"].values()) == 2 and content["block_variants_ms"] == {}
    with torch.inference_mode():
        assert output_error(net(**TOKENS), masked(**TOKENS)) < 1e-5


@pytest.mark.parametrize("choice", [KernelChoice(fuse=False), KernelChoice("none")], ids=["fuse=false", "none"])
def test_unwanted_blocks_are_not_rewritten(case, choice):
    net, report = swapped(case, choice)
    assert not report.fusion.blocks and not any(isinstance(part, FusedBlock) for part in net.modules())
    assert report.kernels == {"dense_linear" if choice.mode == "none" else "gathered_reference": 13}


def test_saved_swap_times_nothing(case, monkeypatch):
    masked, export = case
    net, report = swapped(case)
    save_choices(report, export.directory)
    monkeypatch.setattr("sparsefront.inference.autotune.time_layer", None)
    monkeypatch.setattr("sparsefront.inference.fusion.product_choice.time_layer", None)
    torch.manual_seed(1)
    loaded = Bert(size="tiny", prune_head=True).build(INFO)
    again = load_sparse(loaded, export.directory, TOKENS, device=torch.device("cpu"), dtype=torch.float32)
    assert again.plan == report.plan and again.kernels == report.kernels
    assert (again.sparse_layer_share, again.sparse_flops_share) == (1.0, 1.0)
    with torch.inference_mode():
        assert output_error(loaded(**TOKENS), net(**TOKENS)) == 0


def test_swapped_network_of_a_file(case):
    net, _ = swapped(case)
    again = net
    for _ in range(2):  # what was read is written again
        file = io.BytesIO()
        torch.save(again, file)
        file.seek(0)
        again = torch.load(file, weights_only=False)
        with torch.inference_mode():
            assert output_error(again(**TOKENS), net(**TOKENS)) == 0


def test_unrewritten_block_is_swapped_by_layers(case):
    masked, export = case
    layer = masked.bert.encoder.layer[1]
    plain = type(layer).forward

    class LooksAtValues(type(layer)):
        def forward(self, hidden_states, *args, **kwargs):
            if hidden_states.isnan().any():
                raise ValueError("NaN")
            return plain(self, hidden_states, *args, **kwargs)

    layer.__class__ = LooksAtValues
    net, report = swapped(case)
    assert list(report.fusion.blocks) == ["bert.encoder.layer.0"]
    assert "cannot be exported" in report.fusion.unsupported["bert.encoder.layer.1"]
    assert report.kernels == {"gathered_reference": 13} and report.sparse_flops_share == 1.0
    with torch.inference_mode():
        assert output_error(net(**TOKENS), masked(**TOKENS)) < 1e-5
