"""A campaign: its plan, its state on disk, and the runner that runs it step by step."""
