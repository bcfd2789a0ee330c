"""What a network is and does: accuracy, latency, memory, flops and sparsity, one metric per file."""
