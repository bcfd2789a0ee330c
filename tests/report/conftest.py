"""Results made up for the tests of the report."""

import dataclasses
from collections.abc import Callable

import pytest

from sparsefront.report.result import Choice, Cost, Identity, Kernels, Quality, Result, Size, Sparsity, Speed


def made_up_result() -> Result:
    """A run on a CPU with every kind of field filled, and text that is awkward in CSV and HTML."""
    return Result(
        identity=Identity(
            run_id="run-0",
            time="2026-01-02T03:04:05+00:00",
            config_hash="0123456789abcdef",
            seed=3,
            python="3.11.7",
            torch_version="2.15.0",
        ),
        choice=Choice(
            model="vit_small",
            dataset="digits",
            pattern="tile_wise",
            pattern_parameters={"granularity": 128},
            granularity=128,
            importance="magnitude",
            recovery="finetune",
        ),
        sparsity=Sparsity(
            sparsity_target=0.75,
            sparsity_achieved=0.7421875,
            sparsity_per_layer={"block.0.fc1": 0.8, "block.0.fc2": 0.0},
            dense_layers={"block.0.fc2": 'too small: 4 < 8, "so it stays",\n<dense>'},
        ),
        quality=Quality(
            metric_name="accuracy", dense=0.98, masked=0.97, sparse=0.97, extra_metrics={"dense": {"f1": 0.5}}
        ),
        speed=Speed(
            latency_dense_ms=5.25,
            latency_dense_p20_ms=5.0,
            latency_dense_p80_ms=5.5,
            latency_sparse_ms=3.5,
            latency_sparse_p20_ms=3.25,
            latency_sparse_p80_ms=3.75,
            speedup=1.5,
            speedup_low=1.4,
            speedup_high=1.6,
            latency_device="cpu",
            latency_kernel="reference",
            execution_mode_dense="eager",
            execution_mode_sparse="eager",
            variants_not_timed={"cuda_graph": "needs a CUDA device"},
            batch_size=64,
            dtype="fp32",
        ),
        size=Size(weight_bytes_dense=4_000_000, weight_bytes_sparse=1_500_000),
        kernels=Kernels(
            kernel_per_layer={
                "block.0.fc1": {"chosen": "gathered_reference", "latency_us": 120.5, "unsupported": {"csr": "no"}}
            },
            sparse_layer_share=0.5,
            sparse_flops_share=0.5,
        ),
        cost=Cost(train_dense_seconds=12.0, prune_seconds=0.1, dense_reused=True),
    )


@pytest.fixture
def make_result() -> Callable[..., Result]:
    """The made-up result with some fields replaced, by field name."""

    def make(**changes: object) -> Result:
        result = made_up_result()
        for field, value in changes.items():
            for group in dataclasses.fields(result):
                members = getattr(result, group.name)
                if field in {entry.name for entry in dataclasses.fields(members)}:
                    result = dataclasses.replace(result, **{group.name: dataclasses.replace(members, **{field: value})})
        return result

    return make
