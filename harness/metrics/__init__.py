"""Metrics as data, and the two ways to read them: the embedded recorder and Prometheus."""
