"""What everybody writes into: counters, histograms, what becomes of a call. Who reads it is in `monitoring`."""
