"""Results: records of runs, their tables, plots and pages, and a mirror in W&B."""
