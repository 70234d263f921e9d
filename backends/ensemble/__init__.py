"""Models that are composed of models."""
