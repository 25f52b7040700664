"""The main job on real files: what `refstore demo` runs, a phase at a time.

    sources.py    which real files, and what their bytes are, read without refstore
    pace.py       durations short enough to watch, in the environment of every process
    plan.py       who does what on which branch: plain steps, made from a seed
    client.py     a client process: performs its steps, and tells on standard output what the stores confirmed
    processes.py  starting, killing and ending processes, each by its own pid
    ledger.py     what the clients told, and what must therefore be there
    main_job.py   the phases, in order
    verdict.py    what is there, compared with the ledger and with the files; the table

A client's account is the only thing that is believed of it, and only for what it said was done; the rest is counted in
the stores. The audit that decides stands in `refstore/demo/invariants.py` and shares no reading path with the product.
"""
