"""Other servers' configurations -> YAML of the gateway."""
