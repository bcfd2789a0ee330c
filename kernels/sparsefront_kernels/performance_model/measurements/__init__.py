"""Measured times of products: what predictions against dense ask first.

A package of its own, so that what chooses a kernel by the formula does not depend on the tables.
"""
