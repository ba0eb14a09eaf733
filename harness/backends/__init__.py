"""Where replicas live. One protocol (base), one real place so far (local), one shipped fake."""
