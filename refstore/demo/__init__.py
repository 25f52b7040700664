"""The main job on real files, which `refstore demo` runs phase by phase.

    sources.py     the real files, read and hashed without refstore
    pace.py        short safety durations, passed to every process in its environment
    plan.py        the steps of each client on each branch, made from a seed
    client.py      a client process: it performs its steps, and reports on standard output what the stores confirmed
    processes.py   starts, kills and ends processes, each by its own pid
    ledger.py      the clients' reports, and the expected contents that follow from them
    main_job.py    the phases, in order
    verdict.py     compares the stores with the ledger and with the files; prints the table
    invariants.py  the audit, which shares no reading code with the product

A client's reports count only for what they say was done. Everything else is counted in the stores.
"""
