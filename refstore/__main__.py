"""`python -m refstore` is `refstore`."""

from refstore.cli import main

main()
