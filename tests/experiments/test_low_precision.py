"""The study of low precision, and the probe of norms folded into products."""

from dataclasses import replace

import pytest
import torch
import transformers
from torch import nn

from experiments.end_to_end.study import Options
from experiments.low_precision import large
from experiments.norm.folding import FORMS, Emulation, measure
from sparsefront.measure.settings import Measure


def test_dry_run_swaps_in_fp8(tmp_path, caplog):
    settings = Measure(execution_modes=["eager"], variants=[])
    options = Options(tmp_path / "rows.csv", settings, timed=False, tiny=True)
    first = large.all_points()[0]
    assert first.columns["granularity"] == "64x128" and len(large.all_points()) == 12
    with caplog.at_level("INFO"):
        large.measure(replace(first, batch=2, sequence_length=24), options)
    assert "blocked_fp8_reference" in caplog.text and not options.file.exists()


TINY = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 50}


@pytest.mark.parametrize(
    "make",
    [
        lambda: transformers.MPNetModel(transformers.MPNetConfig(**TINY)),
        lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**TINY)),
    ],
)
def test_folded_norms_are_norms(make):
    net, tokens = make(), torch.randint(3, 50, (12, 7))
    for name, tensor in net.named_parameters():
        if "norm" in name.lower():
            nn.init.normal_(tensor, 1.0)
    for dtype, least, most in ((torch.float32, 0.0, 1e-5), (torch.bfloat16, 1e-4, 5e-2)):
        lines = list(measure(net, tokens, dtype))
        assert [line["form"] for line in lines] == list(FORMS)
        assert all(least < line["median_error"] <= line["worst_error"] < most for line in lines)
        assert all((line["largest_product"] is None) == (line["form"] == "plain") for line in lines)


@pytest.mark.parametrize(("mean", "least", "most"), [(0.0, 0.0, 1e-6), (1e4, 1e-2, 1e9)])
def test_one_pass_variance_of_large_means(mean, least, most):
    torch.manual_seed(0)
    Emulation.outputs, Emulation.largest = [], {}
    with torch.no_grad():
        Emulation(nn.LayerNorm(768), "norm", "folded", torch.float32)(torch.randn(8, 768) + mean)
    assert least <= Emulation.largest["variance_error"] < most
