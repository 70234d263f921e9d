"""Models and operators that are a user's own Python class."""
