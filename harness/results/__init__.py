"""What an experiment leaves behind: crash-safe files, the manifest, and the check that nobody touched them."""
