"""Replicas as pods of a cluster, through the Kubernetes API alone."""
