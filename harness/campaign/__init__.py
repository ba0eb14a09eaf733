"""A campaign: its plan, its state on disk, and the conductor that runs it step by step."""
