"""Helpers in C++, built where there is a compiler; everything works without them."""
