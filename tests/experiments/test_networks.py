"""Common networks are pruned, saved, loaded and swapped as the page on networks says."""

import pytest

from experiments.harness import page
from experiments.networks.networks import NETWORKS
from experiments.networks.table import PAGE, row_of

TWINS = {"RoBERTa", "ELECTRA", "DeiT", "Qwen2", "OPT", "VGG", "ViT, timm"}  # of the blocks of others in the list


@pytest.mark.parametrize("name", [name for name in NETWORKS if name not in TWINS])
def test_network_is_as_its_page_says(name):
    assert page.row(row_of(name, NETWORKS[name])) in PAGE.read_text().splitlines()


def test_the_page_has_no_other_networks():
    table = PAGE.read_text().partition("<!-- networks -->")[2].partition("<!-- end of networks -->")[0]
    named = [line.split("|")[1].strip() for line in table.splitlines() if line.startswith("| ")]
    assert named[1:] == list(NETWORKS) and len(named) > 30
