"""The metrics of a result: what each is called, and how it is computed from a run's files."""
