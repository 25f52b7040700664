"""Processes that are killed, over real servers that fail: bounded in `make test`, long in `make soak`."""
