"""Device code shared by the families, by role, and the Python that launches it."""
