"""What the project is built with; no part of what users install."""
