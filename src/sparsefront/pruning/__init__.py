"""When masks are made and how they are applied: from scores to masks, and masks kept exact while weights train."""
