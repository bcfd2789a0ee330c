"""The performance model: limits that any product obeys, constants that come back from times they made, and the shipped ones."""

import dataclasses
from pathlib import Path

import pytest
from sparsefront_kernels.bench.rows import read_rows
from sparsefront_kernels.performance_model import PredictedSpeedup, Product, predict
from sparsefront_kernels.performance_model.__main__ import main
from sparsefront_kernels.performance_model.fit import Sample, fitted
from sparsefront_kernels.performance_model.kernel_latency import FAMILIES, Prediction, predict_with
from sparsefront_kernels.performance_model.rates import DeviceRates, device_rates, user_file
from sparsefront_kernels.performance_model.work import CONSTANTS, STARTS

ROOT = Path(__file__).resolve().parents[2]
MEASURED = ROOT / "experiments" / "operators" / "h200.csv"
DTYPES = {"fp16": 700.0, "fp32": 50.0, "tf32": 380.0}
KERNELS = {
    "gathered_sm90": ("gathered_sm90_feature_major", "fp16"),
    "gathered_simt": ("gathered_simt_feature_major", "fp32"),
    "gathered_small_m": ("gathered_small_m_feature_major", "fp16"),
    "gathered_triton": ("gathered_triton_feature_major", "fp16"),
    "cublas": ("cublas", "fp16"),
}


def rates(**changed) -> DeviceRates:
    """A made-up GPU with the constants that a fit begins with."""
    constants = {f"{family} {dtype}": dict(STARTS) for family in FAMILIES for dtype in DTYPES}
    return dataclasses.replace(DeviceRates("Some GPU", 100, dict(DTYPES), 4000.0, constants=constants), **changed)


def product(**changed) -> Product:
    plain = {"m": 32, "k": 4096, "n": 4096, "sparsity": 0.5, "granularity": 64, "distribution": "equal"}
    return Product(**plain | {"dtype": "fp16", "layout": "feature_major"} | changed)


def predicted_us(kernel: str, one: Product, known: DeviceRates) -> float | None:
    predicted = predict_with(one, kernel, known)
    return predicted and predicted.latency_us


def asked(family: str, **changed) -> tuple[str, Product]:
    kernel, dtype = KERNELS[family]
    return kernel, product(dtype=dtype, **changed)


@pytest.mark.parametrize("family", FAMILIES)
def test_no_product_beats_the_device(family):
    for m in (1, 17, 64) if family == "gathered_small_m" else (1, 256, 5000):
        for granularity in (4, 32, 128):
            kernel, one = asked(family, m=m, granularity=granularity)
            density = 1.0 if family == "cublas" else 1 - one.sparsity
            roofline_us = 2 * m * one.k * one.n * density / (DTYPES[one.dtype] * 1e6 * CONSTANTS["math"][0])
            assert predicted_us(kernel, one, rates()) >= roofline_us
            assert predicted_us(kernel, one, rates()) >= rates().memory_us(one.least_bytes)


@pytest.mark.parametrize("family", FAMILIES)
def test_more_work_is_never_faster(family):
    sizes = [{"m": 8}, {"m": 64}, {"m": 64, "n": 8192}, {"m": 64, "n": 8192, "k": 16384}]
    times = [predicted_us(*asked(family, **size), rates()) for size in sizes]
    assert times == sorted(times) and times[0] < times[-1]
    if family != "cublas":
        sparse = [predicted_us(*asked(family, sparsity=sparsity), rates()) for sparsity in (0.9, 0.75, 0.5, 0.0)]
        assert sparse == sorted(sparse)


def test_unknown_values_say_nothing():
    assert predict(product(), "gathered_sm90", "a GPU that nobody measured") is None
    assert predicted_us("triton_bsr", product(), rates()) is None
    assert predicted_us(*asked("gathered_small_m", m=65), rates()) is None
    assert predicted_us(*asked("gathered_sm90", m=0), rates()) is None
    assert predicted_us("gathered_sm90", product(), rates(constants={})) is None
    untold = {"gathered_sm90 fp16": {name: value for name, value in STARTS.items() if "turn" not in name}}
    assert predicted_us(*asked("gathered_sm90"), rates(constants=untold)) is not None
    assert predicted_us(*asked("gathered_sm90", layout="row_major"), rates(constants=untold)) is None


def test_fit_finds_its_times():
    """Other constants than those it begins with; the times come back, also of shapes that it did not see."""
    true = rates()
    true.constants["gathered_sm90 fp16"].update(launch=3.0, work_tile=1.6, math=0.8, l2_gb_per_s=9000.0, turn_x=1.0)
    grid = [
        product(m=m, k=k, n=n, sparsity=sparsity, granularity=unit, layout=layout)
        for m in (256, 4096)
        for k, n in ((1024, 1024), (4096, 1024), (2048, 4096), (4096, 4096))
        for sparsity in (0.5, 0.9)
        for unit in (128, 32)
        for layout in ("row_major", "feature_major")
    ]
    samples = [Sample("gathered_sm90", one, predicted_us("gathered_sm90", one, true)) for one in grid]
    found = fitted(samples, rates(constants={}))
    assert found.constants.keys() == {"gathered_sm90 fp16"}
    assert "scatter" not in found.constants["gathered_sm90 fp16"], "no sample depends on it"
    errors = found.errors["gathered_sm90 fp16"]
    assert errors["rows"] == len(grid) and errors["median"] < 0.02 and errors["held_out_median"] < 0.05
    known = predict_with(product(dtype="bf16"), "gathered_sm90", dataclasses.replace(found, errors={}))
    assert known == Prediction(known.latency_us, float("inf")), "as of a fit that saw one (K, N)"
    assert predict_with(product(dtype="bf16"), "gathered_sm90", found).error == errors["held_out_p90"]


def test_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SPARSEFRONT_KERNELS_CACHE", str(tmp_path))
    device_rates.cache_clear()
    path = tmp_path / "rows.csv"
    header, *rows = MEASURED.read_text().splitlines(keepends=True)
    path.write_text("".join([header, *rows[::8]]))
    before = read_rows(path)
    assert main([str(path), "--write"]) == 0
    assert "| gathered_sm90 | fp16 |" in capsys.readouterr().out
    assert read_rows(path) == before, "nothing but the column, which is there already"
    lines = [line.replace("NVIDIA H200", "Some GPU") for line in path.read_text().splitlines()]
    small = [line for line in lines if ",fp16," in line and (",M15," in line or ",M9," in line)]
    path.write_text("\n".join([lines[0], *small]) + "\n")
    assert main([str(path)]) == 1 and "--fit fits them" in capsys.readouterr().err
    assert main([str(path), "--fit"]) == 1 and "set --num-sms" in capsys.readouterr().err
    assert main([str(path), "--fit", "--num-sms", "132", "--write"]) == 0
    assert device_rates("Some GPU").made_with["source"] == "rows.csv" and user_file("Some GPU").exists()
    assert main([str(tmp_path / "nowhere.csv")]) == 1
    device_rates.cache_clear()


def test_model_within_its_error():
    assert not PredictedSpeedup(10.0, 9.5).may_win
    assert PredictedSpeedup(10.0, 9.5, source="model", error=0.1).may_win
    assert not PredictedSpeedup(10.0, 9.0, source="model", error=0.1).may_win


def row_major(**changed) -> Product:
    return product(layout="row_major", **{"sparsity": 0.75} | changed)
