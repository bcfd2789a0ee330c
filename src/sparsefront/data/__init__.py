"""What networks are trained and measured on: one file per data set, each a frozen settings dataclass."""
