"""Masks of different patterns, or of different settings, have different names."""

from experiments.operators.measurements import distribution_names, read_measurements


def masks(distribution, pattern, settings=""):
    return {"distribution": distribution, "pattern": pattern, "mask_settings": settings}


def test_patterns_and_their_settings_are_told_apart():
    rows = [
        masks("equal", "vector_wise"),
        masks("pattern", "vector_wise", "m=null seed=0"),
        masks("pattern", "tile_wise", "whole_tiles=true seed=0"),
        masks("pattern", "tile_wise", "whole_tiles=false seed=0"),
        masks("", "dense"),
    ]
    assert list(distribution_names([*rows, *rows]).values()) == [
        "equal",
        "vector_wise",
        "tile_wise whole_tiles=true",
        "tile_wise whole_tiles=false",
        "",
    ]


def test_measurements_of_two_patterns_stay_apart(results_file, measured):
    path = results_file([measured(), measured(kernel="other")])
    header, first, second = path.read_text().splitlines()
    names = header.split(",")

    def changed(line, **values):
        return ",".join((dict(zip(names, line.split(","), strict=True)) | values).values())

    tile = changed(first, distribution="pattern", pattern="tile_wise", mask_settings="seed=0")
    vector = changed(second, distribution="pattern", mask_settings="m=null seed=0")
    path.write_text("\n".join([header, first, tile, vector]) + "\n")
    found = [one.weight.distribution for one in read_measurements(path).measurements]
    assert found == ["equal", "tile_wise", "vector_wise"]
