"""Who reads telemetry: Prometheus (our names and those of other servers), the access log, spans, time series."""
