"""Which data sets of a repository the compliance purge touches, and how (seed 002)."""
