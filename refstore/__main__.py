"""`python -m refstore` is `refstore`, except that Python looks for `refstore` itself in the working folder first;
`python -P -m refstore` does not.
"""

import sys

if not sys.flags.safe_path:
    del sys.path[0]  # the working folder, or under spark-submit this one: nothing else is to be imported from either

from refstore.cli import main

main()
