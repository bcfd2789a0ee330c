"""All weights: the dense baseline that sparse families have to beat."""
