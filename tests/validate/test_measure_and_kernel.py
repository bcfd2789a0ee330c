"""What cannot be measured, or run by a kernel, is rejected before any training."""

import pytest
import torch

from sparsefront.config.validate import validate
from sparsefront.errors import InvalidSetting

REJECTED = {
    "measured batch 0": (["measure.batch_size=0"], r"measure\.batch_size=0"),
    "no measured batch": (["measure.batch_size=[]"], r"measure\.batch_size=\[\]: .*one or more"),
    "measured batch -1": (["measure.batch_size=[8,-1]"], r"measure\.batch_size=\[8, -1\]: "),
    "measured batch twice": (["measure.batch_size=[8,8]"], r"measure\.batch_size=\[8, 8\]: names a value twice"),
    "measured batch in words": (
        ["measure.batch_size=[8,many]"],
        r"measure\.batch_size=.*must be a whole number of at least 1 or a list",
    ),
    "lengths of images": (["measure.sequence_length=[16,32]"], r"measure\.sequence_length=\[16, 32\]: images"),
    "timed images of another size than positions": (
        ["measure.image_size=16"],
        r"measure\.image_size=16: model vit_small for",
    ),
    "timed images of no pixel": (["measure.image_size=0"], r"measure\.image_size=0"),
    "timed images smaller than poolings": (
        ["model=vgg16", "dataset=cifar10", "dataset.path=null", "measure.image_size=16"],
        r"measure\.image_size=16: model vgg16 for images of 32 pixels cannot take these",
    ),
    "text of images": (["measure.mode=decode"], r"measure\.mode=decode: generates text: dataset digits asks for image"),
    "images smaller than poolings": (["model=vgg16"], r"model\.small_images=False: halves .* 32 pixels .* have 8"),
    "parts of a classifier": (["measure.parts=[encoder]"], r"measure\.parts=.*: is for translation; digits asks for"),
    "unknown variant": (["measure.variants=[fused_mlp]"], r"measure\.variants=.*fused_qkv"),
    "time without end": (["measure.autotune_seconds=inf"], r"^measure\.autotune_seconds=inf: must be a finite number"),
    "unknown kernel": (["kernel.name=gathered_fpga"], r"kernel\.name=gathered_fpga: .*gathered_triton"),
    "unknown family": (["kernel.family=ellpack"], r"kernel\.family=ellpack: .*gathered"),
    "family of another pattern": (["kernel=sparse", "kernel.family=blocked"], r"kernel\.family=blocked: .*tile_wise"),
    "kernels of nothing": (["pattern=dense", "kernel=sparse"], r"kernel=sparse: .*pattern=dense prunes none"),
    "repeats for days": (["measure.repeats=1000000"], r"measure\.repeats=1000000: "),
    "workers for a thousand machines": (["dataset.num_workers=100000"], r"dataset\.num_workers=100000: "),
    "batches for years": (["importance=wanda", "importance.batches=1000000000"], r"importance\.batches=1000000000: "),
    "a reporting split": (["optimize=[sparse]"], r"optimize=sparse: is of the reporting split.*val_sparse"),
    "nothing to choose by": (["optimize=[]"], r"optimize=\[\]: "),
    "not a weight left": (["pattern=element_wise", "sparsity=0.99999999"], r"sparsity=0\.99999999: rounds to empty"),
    "not a tile left": (["sparsity=0.99999999"], r"sparsity=0\.99999999: rounds to empty"),
    "kernel=none forces nothing": (["kernel=none", "kernel.family=gathered"], r"kernel\.family=gathered"),
}


@pytest.mark.parametrize(("overrides", "message"), REJECTED.values(), ids=REJECTED.keys())
def test_rejected_with_its_key(composed, overrides, message):
    with pytest.raises(InvalidSetting, match=message):
        validate(composed(*overrides))


@pytest.mark.parametrize("lengths", ["513", "[128,513]"])
def test_texts_longer_than_the_network_takes(composed, tmp_path, lengths):
    (tmp_path / "SST-2").mkdir()
    for split in ("train", "dev"):
        (tmp_path / "SST-2" / f"{split}.tsv").write_text("sentence\tlabel\ngood\t1\nbad\t0\n")
    bert = ["model=bert", "model.size=tiny", "dataset=glue", f"dataset.path={tmp_path}", "trainer=cpu"]
    validate(composed(*bert, "measure.sequence_length=[128,512]"))
    with pytest.raises(InvalidSetting, match=r"measure\.image_size=64: is for images; glue holds text"):
        validate(composed(*bert, "measure.image_size=64"))
    with pytest.raises(InvalidSetting, match=r"measure\.sequence_length=.*513.*model bert takes at most 512 tokens"):
        validate(composed(*bert, f"measure.sequence_length={lengths}"))


NEEDS_GPU = {
    "measure": (["measure.device=cuda"], r"measure\.device=cuda: no CUDA device"),
    "trainer": (["trainer=gpu"], r"trainer\.accelerator=gpu: .*no CUDA device"),
    "precision": (["trainer.precision=16-mixed"], r"trainer\.precision=16-mixed: needs a GPU.*bf16-mixed"),
    "dtype": (["measure.dtype=fp16"], r"measure\.dtype=fp16: .*CUDA"),
    "kernel": (
        ["kernel=sparse", "kernel.name=csr_torch", "pattern=element_wise"],
        r"kernel\.name=csr_torch: cannot run",
    ),
}


@pytest.mark.skipif(torch.cuda.is_available(), reason="about machines without a GPU")
@pytest.mark.parametrize(("overrides", "message"), NEEDS_GPU.values(), ids=NEEDS_GPU.keys())
def test_a_gpu_that_is_not_there(composed, overrides, message):
    with pytest.raises(InvalidSetting, match=message):
        validate(composed(*overrides))
