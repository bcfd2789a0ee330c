"""Configuration: schema, validation, command line and sweeps."""
