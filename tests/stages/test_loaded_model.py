"""A row names the network that was loaded, not the default of a setting that had no say."""

from pathlib import Path

from safetensors.torch import save_file

from sparsefront.data.base import DataInfo
from sparsefront.models.bert import Bert

ROWS = [
    f"the film is {word} and {n} minutes long\t{label}" for n in range(8) for word, label in (("good", 1), ("bad", 0))
]


def mini_lm(folder: Path) -> Path:
    """A BERT of another shape than bert-base-uncased, as `save_pretrained` writes it."""
    model = Bert(size="tiny")
    net = model.build(DataInfo(kind="sequence_classification", num_classes=2, sequence_length=32))
    model.tokenizer([row.partition("\t")[0] for row in ROWS])
    folder.mkdir()
    model.save_pretrained_files(net, folder)
    save_file(net.state_dict(), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_mini_lm_is_no_bert_base(run, tmp_path):
    data = tmp_path / "SST-2"
    data.mkdir()
    for split in ("train", "dev"):
        (data / f"{split}.tsv").write_text("\n".join(["sentence\tlabel", *ROWS]) + "\n")
    folder = mini_lm(tmp_path / "all-MiniLM-L6")
    row = run(
        "trainer=cpu",
        "measure.device=cpu",
        "model=bert",
        f"model.path={folder}",
        "dataset=glue",
        f"dataset.path={tmp_path}",
        "recipe.batch_size=4",
        "pattern=n_m",
        "sparsity=0.5",
        "report.html=false",
        "report.plot=false",
    )
    assert "bert-base" not in row.to_json() and str(tmp_path) not in row.to_json()
    assert row.choice.model_variant == row.choice.model_parameters["path"] == "all-MiniLM-L6"
    assert row.choice.model_parameters["num_hidden_layers"] == 2
    assert row.sparsity.n_of_m == "2:4"
