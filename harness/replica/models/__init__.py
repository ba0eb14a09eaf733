"""The built-in workloads, and what their models are made of."""
