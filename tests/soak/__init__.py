"""Processes that are killed, over real servers that fail: bounded in the suite, long in `make soak`."""
