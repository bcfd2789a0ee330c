"""Allocation: how much goes in which layer, and so which groups of weights survive."""
