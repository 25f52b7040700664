"""How fast, and against what: every bar of bench/results.md, measured side by side with its floor or peer in one run.

    python -m bench                       everything, against its bars; ends with 1 if one is missed
    python -m bench --quick               the same at small sizes, to see that it runs; no bars
    python -m bench --only reaping        one benchmark; --help names them

    __main__.py   the command                   measure.py   series, rows, bars: what is judged, and how
    report.py     the table and the JSON        workshop.py  folders, servers and lakes that a run needs
    machine.py    where it ran                  lakes.py     staged objects without bodies, and blobs without lakes
    workers.py    what must run in a process of its own

The numbers of one row come from one run on one machine, its sides in turn (A B A B ...), and a row's ratio is the
median of the ratios of its turns. Nothing here is compared with a number from elsewhere.
"""
