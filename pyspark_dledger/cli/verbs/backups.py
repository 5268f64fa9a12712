"""``dledger backup`` and ``restore``: copies what a member has committed, and makes a member of the copy."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pyspark_dledger.cli.arguments import add_client, add_json, add_option, natural
from pyspark_dledger.cli.exit_codes import BACKUP_EXITS, CLEAN, FINDINGS
from pyspark_dledger.cli.output.rows import print_report
from pyspark_dledger.cli.output.stream import Output
from pyspark_dledger.cli.stores.open_stores import read_options
from pyspark_dledger.cli.verbs.running_group import connected
from pyspark_dledger.common.plurals import counted
from pyspark_dledger.errors import GroupError, OptionError
from pyspark_dledger.log.options import BACKUP, check_use, parse_options
from pyspark_dledger.raft.client import Client, MemberStatus
from pyspark_dledger.raft.peers import parse_peers


def add_backup(parser: argparse.ArgumentParser) -> None:
    parser.description = "Copy what a running or stopped member has committed, and check every entry and every copy."
    parser.epilog = BACKUP_EXITS
    parser.add_argument("path", metavar="PATH", help="the member's store on this machine")
    text = "a new folder, or an earlier or unfinished backup of the member"
    parser.add_argument("--to", metavar="TARGET", required=True, help=text)
    add_json(parser)
    add_option(parser)


def run_backup(args: argparse.Namespace, out: Output) -> int:
    from pyspark_dledger.rocketmq.backup import backup

    options = parse_options(read_options(args))
    check_use(options, BACKUP)
    report = backup(args.path, args.to, options=options, progress=out.progress)
    text = (
        f"backed up {report.node} to {report.target}: index {report.first_index} to {report.last_index}, term "
        f"{report.last_term}; {counted(report.files, 'file')}, {report.kept_files} kept, {report.copied_bytes} bytes "
        f"copied in {report.seconds:.1f} s"
    )
    print_report(out, report, [text], args.json)
    return FINDINGS if report.lacks_state else CLEAN


def add_restore(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Write the store of a member from a backup. A member of a living group needs --group and --peers, or --term; "
        "until it has an entry that was appended after its first start, it neither votes nor leads. --new-group "
        "restores all members of a group: what was acknowledged after the backup is lost."
    )
    add_client(parser, is_required=False)
    parser.epilog = BACKUP_EXITS
    parser.add_argument("path", metavar="BACKUP", help="a backup")
    parser.add_argument("--to", metavar="ROOT", required=True, help="a new or empty folder")
    parser.add_argument("--id", dest="node", metavar="ID", required=True, help="the member's id")
    text = "instead of --peers: one above the highest term of the others"
    parser.add_argument("--term", type=natural, metavar="N", help=text)
    text = "restore all members: one NAME for all, a new one each time"
    parser.add_argument("--new-group", metavar="NAME", help=text)


def run_restore(args: argparse.Namespace, out: Output) -> int:
    from pyspark_dledger.rocketmq.backup import restore

    term = args.term
    if args.new_group is not None and (args.group or args.peers):
        raise OptionError(
            "--new-group restores all members of a group that does not run: leave out --group and --peers"
        )
    if args.new_group is None and term is None:
        term = _term_above_all(args)
    report = restore(args.path, args.to, args.node, term=term, new_group=args.new_group, progress=out.progress)
    text = (
        f"restored {report.node} to {report.target}: index {report.first_index} to {report.last_index}; "
        f"{counted(report.files, 'file')}, {report.resumed} of them by an earlier run, {report.bytes} bytes in "
        f"{report.seconds:.1f} s"
    )
    later = f"it neither votes nor leads before it has an entry of term {report.votes_from} or later"
    print_report(out, report, [text, later] if report.votes_from is not None else [text], args.json)
    return FINDINGS if report.lacks_state else CLEAN


def _term_above_all(args: argparse.Namespace) -> int:
    """A term above those of all other members. Raises GroupError unless all tell theirs, OptionError for wrong peers.

    The member may have voted for any of them: what it promised is lost, but a candidate knows its own term.
    """
    from pyspark_dledger.rocketmq.backup.member_copy import read_manifest

    if args.group is None or args.peers is None:
        raise OptionError("expected --group and --peers, --term, or --new-group, found none of them")
    peers = parse_peers(args.peers)
    manifest = read_manifest(Path(args.path))
    saved = manifest.members if manifest is not None else ()
    with connected(args) as client:
        others = _others(client, peers, args.node, saved)
        if missing := set(saved) - {*peers, args.node}:
            found = ", ".join(sorted(missing))
            raise OptionError(f"--peers: expected all members, found none for {found}, or give --term")
        if not others:
            raise OptionError("--peers: expected the other members, found none")
        for other in others:
            if other.problem:
                raise OptionError(
                    f"expected members without a problem, found one of {other.node_id} ({other.problem}): wait until "
                    "it is over, or give --term"
                )
        if len(others) > 1:  # a lone other member has no leader now, and elects one without the vote of this one
            _check_majority(args.node, client.members().voters)
    return max(other.term for other in others) + 1


def _others(client: Client, peers: Iterable[str], restored: str, saved: Sequence[str]) -> list[MemberStatus]:
    """The states of all other members. Raises OptionError and GroupError.

    One that does not respond may have been removed: what those that respond know of the members counts first.
    """
    found: dict[str, MemberStatus] = {}
    silent: dict[str, GroupError] = {}
    for node_id in peers:
        try:
            found[node_id] = client.status(node_id)
        except GroupError as error:
            silent[node_id] = error
    if restored in found:
        raise OptionError(f"--id: expected a member that is stopped, found that {restored} runs: stop it first")
    for other in found.values():
        _check_members(other, saved)
    silent.pop(restored, None)
    for node_id, reason in silent.items():
        raise GroupError(f"{node_id} does not tell its term ({reason}): start it, or give --term", reason.code)
    return list(found.values())


def _check_members(other: MemberStatus, saved: Sequence[str]) -> None:
    """Raises OptionError if the group has other members than the backup: an old list could elect a removed one."""
    if saved and sorted(other.members) != sorted(saved):
        raise OptionError(
            f"the group has other members ({', '.join(sorted(other.members))}, says {other.node_id}) than at the time "
            f"of the backup ({', '.join(sorted(saved))}): start an empty member with --join instead"
        )


def _check_majority(node_id: str, voters: Mapping[str, str]) -> None:
    """Raises OptionError if the other voters are no majority: the restored member does not vote at first."""
    others = sorted(voters.keys() - {node_id})
    if 2 * len(others) <= len(voters):
        raise OptionError(
            f"expected a majority of the voters {', '.join(voters)} without {node_id}, found {', '.join(others)}: wait "
            "until the change of members is complete"
        )
