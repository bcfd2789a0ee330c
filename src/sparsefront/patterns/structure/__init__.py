"""What patterns are built of: grids of blocks, windows of n:m, steps over tiles, searched orders."""
