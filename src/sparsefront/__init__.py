"""sparsefront: accuracy and measured latency of sparse networks, from one configuration to one result."""
