"""What operators see of a lake: figures, metrics, and the runs under way."""
