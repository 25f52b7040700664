"""What the HTTP service keeps in a lake: access keys, imports in the background, and sample data."""
