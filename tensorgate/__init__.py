"""tensorgate: one front door for inference clients that speak different languages."""
