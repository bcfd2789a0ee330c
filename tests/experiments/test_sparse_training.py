"""Parts of a training step by the names of their kernels, and how rows are shared out between blocks of the grid."""

from sparsefront_kernels.blocked.sm90_training import splits_for


def test_few_pairs_share_rows():
    few, many = splits_for(12_288, (6,) * 6, 132), splits_for(12_288, (8,) * 128, 132)
    assert few > 4 and many == 1 and splits_for(100, (6,) * 6, 132) == 1
