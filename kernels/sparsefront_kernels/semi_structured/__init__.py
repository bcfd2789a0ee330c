"""2:4, the one pattern that tensor cores skip by themselves."""
