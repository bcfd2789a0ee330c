"""The configuration: its schema, its checks, the command line and sweeps."""
