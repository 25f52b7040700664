"""The main job on real files: `make demo`, or `python -m examples.demo`.

__main__.py         the options, the table of results, and the exit code
main_job.py         the phases, in order: fill a branch, work on five others, kill a client, merge, let reapers finish
clients.py          what each client process does, with the SDK as any application uses it
client_reports.py   what the clients say that the stores confirmed
final_audit.py      the audit: what is named is read back and compared with the files, and nothing else is left
source_files.py     the real files, read and hashed without refstore
processes.py        starts, kills and ends processes, each by its own pid
short_durations.py  short safety durations, and the settings of every process
"""
