"""Comparisons that anyone can run again; README.md says what each measures and how to read it."""
