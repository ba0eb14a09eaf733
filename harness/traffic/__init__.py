"""Load on served replicas: when requests are sent, what became of each, and what a scenario's result says."""
