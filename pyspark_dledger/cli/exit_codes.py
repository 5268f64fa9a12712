"""Exit codes, the help texts that explain them, and what verbs did not check."""

CLEAN, FINDINGS, ERROR = 0, 1, 2
INTERRUPTED = 128 + 2
"""Ended by SIGINT, as shells count."""

_PATH = (
    "PATH is a storePathRootDir, a dledger-<id>/ folder, a data/ or commitlog/ folder, or one segment file. "
    "Only rebuild changes it."
)
READ_EXITS = (
    "exit codes: 0 clean; 1 findings, or find found nothing; 2 error; 130 interrupted. The help of a verb says when "
    "its exit code is 1. " + _PATH
)
EXPORT_EXITS = (
    "exit codes: 0 done; 1 done, but rows were left out, have a problem, or there are none "
    "(tables: 0); 2 error; 130 interrupted. The same command continues an interrupted export. " + _PATH
)
REPLAY_EXITS = (
    "exit codes: 0 done; 1 rows had to be left out, messages are unknown, there are none, or the cluster lacks topics; "
    "2 error; 130 interrupted. The same command continues an unfinished replay. " + _PATH
)
REBUILD_EXITS = (
    "exit codes: 0 done, or with --dry-run nothing would change; 1 with --dry-run something would change; 2 error; "
    "130 interrupted. The old files stay in place until the new ones are complete."
)
SALVAGE_EXITS = (
    "exit codes: 0 done, nothing is lost; 1 something is lost, undecided or fails its checks; 2 error; "
    "130 interrupted. The same command continues an interrupted salvage. " + _PATH
)
BACKUP_EXITS = "exit codes: 0 done; 1 done, but it lacks the state of expired messages; 2 error; 130 interrupted"
MIGRATE_EXITS = (
    "exit codes: 0 done, or copied what is committed; 1 something would be lost and nothing was written, or rows were "
    "left out; 2 error; 130 interrupted. The same command continues an "
    "interrupted migration."
)
SERVE_EXITS = "exit codes: 0 stopped by SIGTERM; 2 error; 130 interrupted"
CLIENT_EXITS = (
    "exit codes: 0 done; 1 nothing found, or the outcome is unknown: it may have been done, or may be done later; "
    "2 error: nothing was done except what was printed; 130 interrupted"
)


def read_exits(findings: str | None) -> str:
    """The exit codes of a verb that reads; `findings` says when it is 1 (None: never)."""
    one = f"1 {findings}; " if findings else ""
    return f"exit codes: 0 clean; {one}2 error; 130 interrupted. {_PATH}"


NOT_CHECKED = {
    "verify": "other replicas and a restart: dledger check with all replicas",
    "diff": "indexes, queues and state files, and what a restart would do: dledger check",
    "audit": "what else is wrong with the store: dledger verify",
    "recovery": "other replicas, and what consumers miss: dledger check with all replicas",
    "lost": "what is wrong with queues and indexes: dledger check",
}
"""What a verb that looks at stores did not check, for its last line."""


def not_checked(verb: str) -> str:
    """The last line of a verb."""
    return f"not checked: {NOT_CHECKED[verb]}"
