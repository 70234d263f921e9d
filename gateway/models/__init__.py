"""Which models are configured, loaded and serving."""
