"""Storage of finished stages under their cache keys."""
