"""The state of a repository: branches, staging areas, reference lists, commits."""
