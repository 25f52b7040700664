"""The executable specification of the protocol: every interleaving of its flows, a crash or a lost reply at any step.

    python docs/protocol_model.py            every scenario: must print no violation (some two minutes)
    python docs/protocol_model.py --mutants  one rule dropped at a time, with what is then lost
    python docs/protocol_model.py --seed     proposal 4 of lakeFS's rejected design, as written, on the first 28
                                             scenarios

Add -v for the steps that lead to a violation, or words of scenarios' names to run only those. The model itself stands
in `docs/protocol_model/`, its prose in `docs/protocol.md`.
"""

import sys

from protocol_model.cli import main

if __name__ == "__main__":
    sys.exit(1 if main(sys.argv[1:]) else 0)
