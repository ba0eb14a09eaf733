"""What the measurements say to each question of a comparison."""
