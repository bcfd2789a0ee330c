"""What results call the kernels of layers that stayed dense."""

DENSE_LINEAR, DENSE_CONV2D = DENSE_KERNELS = ("dense_linear", "dense_conv2d")
