"""Whether a stored result still is what was measured, and whether measuring again gives the same."""
