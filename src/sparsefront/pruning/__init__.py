"""When masks are made and how they are held: from scores to masks, and masks kept exact while weights train."""
