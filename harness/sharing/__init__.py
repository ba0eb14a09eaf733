"""How replicas share GPUs: one object a mode, on this machine and on a cluster."""
