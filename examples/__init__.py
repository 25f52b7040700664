"""Programs to run on your own data, from the checkout: `python -m examples.git_history --help`."""
