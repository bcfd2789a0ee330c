"""Configuration keys of earlier versions and what has replaced them."""

# old key -> new key that takes the same values
RENAMED_KEYS = {
    "measure.wrappings": "measure.execution_modes",
    "recipe.history": "recipe.save_epoch_weights",
    "recipe.keep_dense": "recipe.ignore",
    "trainer.accumulate": "trainer.accumulate_grad_batches",
}
# old key -> what to type instead, where the values changed too
REPLACED_KEYS = {
    "allocation.min_density": "is allocation.min_density_share now, a share of the target density: what was 0.1 at "
    "sparsity 0.75 is allocation=global_threshold allocation.min_density_share=0.4",
}


def renamed_key(key: str) -> str | None:
    """What to tell a user who typed an old key, in words; None for every other key."""
    if key in RENAMED_KEYS:
        return f"is {RENAMED_KEYS[key]} now"
    return REPLACED_KEYS.get(key)
