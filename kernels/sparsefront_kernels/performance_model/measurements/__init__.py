"""Data alone: the shipped tables that `latency_table.py` reads. A package of its own, so that what chooses a kernel by the
formula does not depend on them.
"""
