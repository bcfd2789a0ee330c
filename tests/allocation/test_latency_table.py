"""Reading tables of layer times: what is there, and every way in which a file can be wrong."""

from pathlib import Path

import pytest

from sparsefront.allocation.latency_aware import COLUMNS, read_table
from sparsefront.errors import InvalidSetting


def test_levels_ascend_and_stop_at_the_ceiling(table_of):
    table = read_table(table_of({"a": {0.75: 3.5, 0: 10.0, 0.9375: 2.0, 0.5: 6.0}}))
    assert list(table.levels("a", 0.75).items()) == [(0.0, 10.0), (0.5, 6.0), (0.75, 3.5)]
    assert list(table.levels("a", 0.4)) == [0.0]


def test_a_table_written_by_hand_needs_three_columns(tmp_path: Path):
    file = tmp_path / "by_hand.csv"
    file.write_text("latency_us, layer,sparsity,note\n".replace(" ", "") + "8, a ,0,x\n4.5,a, 0.5 ,y\n")
    assert read_table(str(file)).times == {"a": {0.0: 8.0, 0.5: 4.5}}


@pytest.mark.parametrize(
    ("mark", "separator", "encoding", "ends"),
    [
        ("\ufeff", ",", "utf-8", "\r\n"),
        ("", ";", "utf-8", "\r\n"),
        ("\ufeff", "\t", "utf-8", "\n"),
        ("", "\t", "utf-16", "\n"),
    ],
)
def test_a_table_that_a_spreadsheet_saved_is_read(tmp_path: Path, mark, separator, encoding, ends):
    file = tmp_path / "saved.csv"
    lines = ["layer,note,sparsity,latency_us", "größe,,0,8", "größe,x,0.5,4.5", ""]
    file.write_bytes((mark + ends.join(line.replace(",", separator) for line in lines)).encode(encoding))
    assert read_table(str(file)).times == {"größe": {0.0: 8.0, 0.5: 4.5}}


def test_a_decimal_comma_is_named(tmp_path: Path):
    file = tmp_path / "saved.csv"
    file.write_text("layer;sparsity;latency_us\na;0;8\na;0,5;4,5\n", encoding="utf-8")
    with pytest.raises(InvalidSetting, match="line 3: sparsity '0,5' and latency_us '4,5' are not both numbers"):
        read_table(str(file))


def test_no_table_says_how_to_make_one():
    with pytest.raises(InvalidSetting, match=r"table=None.*run\.py -m sparsity=.*allocation=per_layer.*latency_table"):
        read_table(None)
    with pytest.raises(InvalidSetting, match=r"table=/nowhere\.csv: is no file.*sparsefront\.results\.latency_table"):
        read_table("/nowhere.csv")


WRONG = {
    "column": ("layer,latency_us\na,1\n", "lacks column sparsity; a table has layer,sparsity,latency_us"),
    "nothing": ("layer,sparsity,latency_us\n", "has no times"),
    "empty file": ("", "lacks column layer, sparsity, latency_us"),
    "text": ("layer,sparsity,latency_us\na,half,1\n", "line 2: sparsity 'half' and latency_us '1' are not both"),
    "short line": ("layer,sparsity,latency_us\na,0\n", "line 2: .*latency_us '' are not both numbers"),
    "sparsity 1": ("layer,sparsity,latency_us\na,0,2\na,1,1\n", r"line 3: sparsity 1 is not .*\[0, 1\)"),
    "sparsity nan": ("layer,sparsity,latency_us\na,nan,2\n", "sparsity nan is not"),
    "time 0": ("layer,sparsity,latency_us\na,0,0\n", "line 2: latency_us 0 of layer a is not above 0"),
    "time negative": ("layer,sparsity,latency_us\na,0,-3\n", "latency_us -3"),
    "time infinite": ("layer,sparsity,latency_us\na,0,inf\n", "latency_us inf"),
    "no dense": ("layer,sparsity,latency_us\na,0.5,1\na,0.75,1\n", r"no dense time \(sparsity 0\) of layer a"),
    "only dense": ("layer,sparsity,latency_us\na,0,1\n", "only the dense time of layer a"),
    "twice": ("layer,sparsity,latency_us\na,0,1\na,0.5,1\na,0.50,2\n", "layer a at sparsity 0.5 twice"),
    "two patterns": (
        "layer,sparsity,latency_us,pattern,granularity\na,0,1,n_m,\na,0.5,1,block_wise,32\n",
        r"several patterns \(block_wise 32, n_m\)",
    ),
    "not text": (b"\xff\xfe\x00", "table="),
}


@pytest.mark.parametrize(("content", "message"), WRONG.values(), ids=WRONG)
def test_wrong_tables(tmp_path: Path, content: str | bytes, message: str):
    file = tmp_path / "table.csv"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InvalidSetting, match=message) as raised:
        read_table(str(file))
    assert raised.value.key == "table"


def test_a_layer_that_is_not_there_is_named_beside_those_that_are(table_of):
    table = read_table(table_of({name: {0: 2.0, 0.5: 1.0} for name in "abcde"}))
    with pytest.raises(InvalidSetting, match="no times of layer f, .*it has a, b, c and 2 more"):
        table.levels("f", 0.9)


def test_columns_are_those_of_the_readme():
    assert ",".join(COLUMNS) == "layer,sparsity,latency_us,kernel,m,k,n,dtype,device,pattern,granularity"
