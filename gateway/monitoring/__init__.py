"""Who reads telemetry and the engine's statistics: Prometheus (our names and those of other servers), the access log,
spans, time series.
"""
