"""A pattern of somebody's own, with an error."""

from sparsefront.patterns.block_wise import BlockWise


class TornBlocks(BlockWise):
    """Takes a weight from a block that stays."""

    def layer_mask(self, importance, allowed, sparsity, structure_sparsity=None):
        mask = super().layer_mask(importance, allowed, sparsity, structure_sparsity)
        row, column = mask.nonzero()[0]
        mask[row, column] = False
        return mask
