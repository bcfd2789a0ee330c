"""Verify a stored result: whether it is unedited, and whether measuring again reproduces it."""
