"""Reading metrics out of a Prometheus server: the adapter, the raw-sample check, the exporter."""
