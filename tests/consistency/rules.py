"""The rules by which no two verbs may contradict each other, or the truth."""

from __future__ import annotations

import json
import math
import random
import shlex
import shutil
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path

from tests.consistency.claims import (
    DAMAGED,
    ELSEWHERE,
    INTACT,
    QUEUES,
    STOPS_START,
    Contradiction,
    Group,
    Losses,
    Number,
    claims,
    losses,
    losses_of_plan,
    of_others,
    on_disk,
    rows_of_kind,
    shown,
    since_put_back,
    surely_damaged,
)
from tests.consistency.damages import copied
from tests.consistency.verbs import Crash, Row, diff, listed_ends, own_name, run
from tests.consistency.worlds import LEDGER, Entry, shared_count, world_of
from tests.salvage import groups as salvage_groups
from tests.salvage.heal import heal_differences
from tests.support.sparse_copy import copy_tree

MAX_COMMANDS = 3 * 2 * 3 + 1
"""Three commands rebuild the queues, or the keys, of one of three members; the last one finds nothing more to do."""
STARTS = ("yes", "master", "slave")


def check_losses(group: Group) -> None:
    """What is lost for good, and what is unclear, is the same for all verbs."""
    found = losses(group)
    # `lost` says in words what is unclear, and of many ranges only the first ones.
    is_cut = any("cannot tell" in note and " more:" in note for note in group.lost.notes)
    for one, two in combinations(found, 2):
        for name, first, second in zip(Losses._fields, found[one], found[two], strict=True):
            for verb, other, more in ((one, two, first - second), (two, one, second - first)):
                if more and not (name == "unclear" and other == "lost" and is_cut):
                    group.say(f"{name}: same for all", f"{verb}, not {other}", shown(more))


def story_differences(salvaged: salvage_groups.Group, members: Sequence[Path] | None = None) -> list[Contradiction]:
    """Where verbs differ of a group of the tests of salvages about what is lost for good or unclear."""
    made = world_of(salvaged)
    order = [path.name for path in members or salvaged.members]
    group = Group(made, [made.replica(name) for name in order], salvaged.members[0].parent)
    check_losses(group)
    return group.problems


def check_claims(group: Group) -> None:
    """What one calls intact no other calls damaged, unless it can mean the entries of a file that was put back."""
    by_state: dict[str, dict[str, dict[str, set[Number]]]] = defaultdict(lambda: defaultdict(lambda: defaultdict(set)))
    for claim in claims(group):
        by_state[claim.replica][claim.state][claim.verb] |= claim.numbers
    for name, states in by_state.items():
        either = of_others(group, group.replica(name))
        for intact, good in states[INTACT].items():
            for damaged, bad in states[DAMAGED].items():
                if both := good & bad - either:
                    group.say("intact and damaged", f"{intact} and {damaged}", f"{name}: {shown(both)}")
        _check_truth(group, name, states)


def _check_truth(group: Group, name: str, states: dict[str, dict[str, set[Number]]]) -> None:
    replica = group.replica(name)
    assert replica is not None
    intact = {each.number for each in group.truth[name]}
    gone = surely_damaged(replica) - of_others(group, replica)
    for verb, numbers in states[INTACT].items():
        if numbers & gone:
            group.say("truth: called intact, is not", verb, f"{name}: {shown(numbers & gone)}")
    intact -= since_put_back(group, replica)
    for verb, numbers in states[DAMAGED].items():
        if numbers & intact:
            group.say("truth: called damaged, is intact", verb, f"{name}: {shown(numbers & intact)}")


def check_start(group: Group) -> None:
    """A verdict that a replica may start: `verify` finds no error in its log. `diff` says that it reads no queues."""
    for member in group.verdict.members if group.verdict is not None else ():
        name = own_name(member["node"], group.stores)
        if name not in group.stores or member["start"] not in STARTS:
            continue
        if errors := _errors(group, name, of_log=True):
            group.say("may start", "diff and verify", f"{name}: {', '.join(errors)}")
        replica = group.replica(name)
        assert replica is not None
        kept = {entry.number for entry in replica.entries if entry.pos < _kept_end(group, name)}
        if gone := _inside(group, surely_damaged(replica) & kept, name):
            group.say("truth: may start", "diff", f"{name}: {shown(gone)} damaged")


def _inside(group: Group, numbers: set[Number], name: str) -> set[Number]:
    """Those before the last intact entry of a replica, and after its first one."""
    intact = [each.number for each in group.truth[name]]
    return {each for each in numbers if intact and min(intact) < each < max(intact)}  # type: ignore[operator]


def check_check(group: Group) -> None:
    """`check` says what the verbs for the details say, and so does its exit code."""
    (found,) = group.checked.rows
    if group.verdict is not None and found["lost"] != group.verdict.group["lost"]:
        group.say("check", "check and diff", f"lost: {found['lost']}, {group.verdict.group['lost']}")
    known = {own_name(each["node"], group.stores): each for each in group.verdict.members} if group.verdict else {}
    sizes = Counter(each["queueFileUnits"] for each in found["members"] if each["queueFileUnits"])
    for member in found["members"]:
        name = Path(member["path"]).name
        stops = [*_errors(group, name, of_log=True), *_errors(group, name, of_log=False, only=STOPS_START)]
        if member["start"] == "yes" and stops:
            group.say("may start", "check and verify", f"{name}: {', '.join(stops)}")
        queues = [*_errors(group, name, of_log=False), *{row["code"] for row in group.audited[name].rows}]
        if member["serve"] == "yes" and queues:
            group.say("may serve", "check, verify and audit", f"{name}: {', '.join(sorted(queues))}")
        has_usual_files = not sizes or sizes.get(member["queueFileUnits"], max(sizes.values())) == max(sizes.values())
        if name in known and has_usual_files:
            _check_member(group, name, member, known[name], stops)
    if group.checked.code == 0:
        runs = [group.lost, *group.verified.values(), *group.audited.values()]
        # Stores that were never written may start, and there is nothing to salvage.
        runs += [group.plan] if "expected segments" not in group.plan.err else []
        if failed := sorted({ran.verb for ran in runs if ran.code != 0}):
            group.say("exit code", f"check 0, not {', '.join(failed)}", ", ".join(group.stores))


def _check_member(group: Group, name: str, member: Row, known: Row, stops: list[str]) -> None:
    """`check` allows a member what `diff` allows, unless `verify` or a restart says more."""
    start = "yes" if known["start"] in STARTS else known["start"]
    stops = stops or _errors(group, name, of_log=True, is_kept=False)
    is_explained = member["start"] == "no" and (stops or not (member["restart"] or {"starts": True})["starts"])
    if member["start"] != start and not is_explained:
        group.say("check", "check and diff", f"start of {name}: {member['start']}, {start}")
    may_lead = known["start"] == "master" if group.world.kind != LEDGER else known["elect"] in ("yes", "withLoss")
    if member["lead"] == "yes" and not may_lead:
        group.say("check", "check and diff", f"lead of {name}: yes, {known['start']} {known.get('elect')}")


def _errors(group: Group, name: str, *, of_log: bool, only: str = "", is_kept: bool = True) -> list[str]:
    """The errors that `verify` finds in the log, or in the queues, of a replica; by default in what a slave keeps."""
    rows = group.verified[name].rows if name in group.verified else []
    kept = _kept_end(group, name) if is_kept else math.inf
    rows = [row for row in rows if row["severity"] == "error" and (row["pos"] is None or row["pos"] < kept)]
    # The index is rebuilt, or stops a start, as the recovery model says: `diff` says that it reads none.
    rows = [row for row in rows if row["code"] != "fileSize" or "/index/" not in row["file"]]
    codes = {row["code"] for row in rows if row["code"].startswith(only)}
    return sorted(each for each in codes if not each.startswith(ELSEWHERE) and each.startswith(QUEUES) != of_log)


def _kept_end(group: Group, name: str) -> float:
    """Where a slave truncates its CommitLog when it connects, as `diff` says: no damage after it stops a start."""
    members = group.verdict.members if group.verdict is not None and group.world.kind != LEDGER else []
    own = next((each for each in members if own_name(each["node"], group.stores) == name), None)
    point = own["truncation"] if own is not None and own["start"] == "slave" else None
    return point["pos"] if point is not None and point["pos"] is not None else math.inf


def check_walk(group: Group) -> None:
    """From `check` on, each command prints the next one, until nothing is left to do.

    What is left to do after an export is in the line below its command. Where nothing tells which log is right, the
    user names it, so no command is complete.
    """
    walk = group.folder / "walk"
    for name in group.stores:
        copy_tree(group.folder / name, walk / name)
    command = ["check", *group.stores]
    for _ in range(MAX_COMMANDS):
        ran = run(walk, *command, as_json=False)
        if ran.code == 2:
            group.say("walk", command[0], f"dledger {' '.join(command)}: {ran.err[:200]}")
            return
        lines = ran.out.splitlines()
        if any(line.startswith("next: choose") for line in lines) and ran.code == 1:
            return
        if any(line.startswith("done:") for line in lines) or (command[0] == "export" and ran.code == 0):
            return
        following = next((line for line in lines if line.startswith("next: dledger ")), None)
        if following is None:
            group.say(
                "walk", command[0], f"dledger {' '.join(command)}: no next command: {ran.out[-100:]}{ran.err[-100:]}"
            )
            return
        before, command = command, shlex.split(following.removeprefix("next: dledger "))
        if command == before:
            break
    group.say("walk", "no end", f"dledger {' '.join(command)}")


def check_codes(group: Group) -> None:
    """Exit codes agree with what is printed, and with other verbs."""
    for name in group.stores:
        verified, audited = group.verified[name], group.audited[name]
        is_clean = not any(row["severity"] in ("warning", "error") for row in verified.rows)
        if (verified.code == 0) != is_clean:
            group.say("exit code", "verify", f"{name}: {verified.code}")
        if audited.code == 0 and audited.rows:
            group.say("exit code", "audit", f"{name}: 0 with rows")
        if verified.code == 0 and audited.code == 1:
            codes = sorted({row["code"] for row in audited.rows})
            group.say("exit code", "verify 0, audit not", f"{name}: {', '.join(codes)}")
        if verified.code == 0 and group.alone[name].code != 0:
            group.say("exit code", "verify 0, lost not", f"{name}: {group.alone[name].err[:100]}")
        if verified.code == 0 and (damages := _queue_damages(group, name)):
            group.say("truth: no false all-clear", "verify", f"{name}: {damages[0]}")
        dump = run(group.folder, "dump", name, "--columns", "pos,problem")
        problems = sum(row["problem"] is not None for row in dump.rows)
        counted = next((row["problems"] for row in run(group.folder, "stats", name).rows if row["of"] == "total"), 0)
        if problems != counted:
            group.say("stats and dump", "stats and dump", f"{name}: {counted} problems, dump has {problems}")
    if group.plan.code == 0 and "lost for good: nothing" not in group.plan.err:
        group.say("exit code", "plan", group.plan.err[:100])
    nothing = {verb for verb, found in losses(group).items() if not (found.lost or found.unclear)}
    codes = {"plan": group.plan.code}
    if group.plan.code in (0, 1) and group.verdict is not None and group.is_main_planned:
        is_nothing = group.verdict.group["lost"] == "nothing"
        if is_nothing != (group.plan.code == 0):
            group.say(
                "exit code",
                "diff and plan",
                f"diff lost {group.verdict.group['lost']}, plan {codes}: {group.plan.err[:120]}",
            )
    if group.lost.code == 0 and "lost" not in nothing:
        group.say("exit code", "lost", "0 with losses")
    if group.verdict is not None and group.verdict.ran.code == 0:
        for name in group.stores:
            if errors := _errors(group, name, of_log=True):
                group.say("exit code", "diff 0, verify has errors", f"{name}: {errors}")


def _queue_damages(group: Group, name: str) -> list[str]:
    """Damages of queues that a replica with a whole log must show."""
    replica = group.replica(name)
    assert replica is not None
    is_whole = group.truth[name] == set(replica.entries)
    kinds = ("folder", "delete", "zeros", "last", "size")
    return [each for each in replica.damages if is_whole and each.startswith("queue_file") and each.endswith(kinds)]


def check_alone(group: Group) -> None:
    """What `lost` says of one replica alone it also says with others, which may show more.

    What is lost alone is lost or unclear with others, too, unless they show that the log of the replica had ended: it
    is behind. So it is with a tail that it never shared, if none of it is left. What is unclear alone can be intact
    only if another replica has the same bytes.
    """
    together: dict[str, set[Number]] = defaultdict(set)
    for row in rows_of_kind(group, group.lost):
        for name in (own_name(each, group.stores) for each in (*row["lostOn"], *row["unclearOn"])):
            replica = group.replica(name)
            together[name] |= group.project_row(row, replica.entries if replica is not None else None)
    unclear = losses(group)["lost"].unclear
    if group.verdict is not None:
        unclear = unclear | losses(group)["diff"].unclear
    for name, ran in group.alone.items():
        replica = group.replica(name)
        assert replica is not None
        alone: set[Number] = set()
        for row in rows_of_kind(group, ran):
            found = group.project_row(row, replica.entries)
            alone |= found if row["lostOn"] else found - _numbers_of_others(group, name)
        own = {each.number for each in replica.entries} - _behind(group, name) - of_others(group, replica)
        tail = replica.entries[shared_count(group.world.main, replica.entries) :]
        own -= set() if replica.intact(tail) else {each.number for each in tail}
        if missing := alone & own - together[name] - unclear:
            group.say("lost alone and together", "lost", f"{name}: {shown(missing)} only alone")


def _numbers_of_others(group: Group, name: str) -> set[Number]:
    """The entries of which another replica has the same bytes on disk."""
    replica = group.replica(name)
    others = [each for each in group.given if each.name != name]
    return {
        entry.number
        for entry in (replica.entries if replica is not None else ())
        if (data := on_disk(replica, entry)) and any(on_disk(each, entry) == data for each in others)
    }


def _behind(group: Group, name: str) -> set[Number]:
    """The entries after the end of a replica's log, as `diff` says: it has neither them nor later ones."""
    if group.verdict is None:
        return set()
    key = "lastIndex" if group.world.kind == LEDGER else "lastPos"
    rows = [row for row in group.verdict.rows if row["verdict"] not in ("committed", "onMajority", "stale")]
    having = [row[key] for row in rows if name in {own_name(n, group.stores) for n in _having(row)}]
    return {each.number for each in group.replica(name).entries if each.number > max(having, default=-1)}


def _having(row: Row) -> list[str]:
    """The replicas whose logs have the entries of a row of `diff`, intact or not."""
    about = row["nodes"] if row["verdict"] in ("filler", "otherBytes", "unreadable") else []
    return [*row["damaged"], *row["intact"], *row["terms"], *about]


def check_all_clear(group: Group) -> None:
    """What is surely damaged on every replica, inside of the log, is lost or unclear for each verb."""
    having = [each for each in group.given if each.copy_of is None]
    # A file that was put back can have what the log of its replica never had.
    intact = {entry for each in group.given for entry in each.intact(group.world.main)}
    main = [entry for entry in group.world.main if entry in intact]
    if not main:
        return
    inside = [e for e in group.world.main if main[0].pos < e.pos < main[-1].pos and e not in intact]
    gone = {
        entry.number
        for entry in inside
        if all(entry not in each.entries or entry.number in surely_damaged(each) for each in having)
    }
    if group.plan.code != 2:
        repaired = set()
        for row in rows_of_kind(group, group.plan):
            if row["action"] == "repair":
                repaired |= group.project_row(row)
        gone -= repaired
    for verb, found in losses(group).items():
        said = found.lost | found.unclear
        if verb in ("diff", "lost") and not group.is_main_planned:
            continue  # they name the logs of which nothing tells if they are the group's
        if verb == "lost" and group.verdict is not None:
            said |= losses(group)["diff"].unclear
        if missing := gone - said:
            group.say("truth: no false all-clear", verb, shown(missing))


def check_result(group: Group) -> None:
    """The result of a salvage is clean for every verb, equals what `heal` reads, and has no wrong copy."""
    target = group.folder / "result"
    shutil.rmtree(target, ignore_errors=True)
    chosen = ("--log-of", group.log_of) if group.log_of else ()
    ran = run(group.folder, "salvage", *group.stores, "--to", "result", "--undecided", "majority", *chosen)
    if group.plan.code != 2 and ran.code == 2:
        group.say("result", "plan and salvage", f"the plan is good, but: {ran.err[:200]}")
    if ran.code == 2 or group.plan.code == 2:
        return
    verified, audited = run(group.folder, "verify", "result"), run(group.folder, "audit", "result")
    faults = sorted({row["code"] for row in verified.rows if row["severity"] != "info"})
    # No replica has another copy: a queueOffset that is damaged alike on all replicas stays.
    kept = {"messageNotInQueue"} if faults == ["queueOffsetTooFar"] else set()
    if not kept and (faults or verified.code != 0):
        group.say("result", "salvage and verify", ", ".join(faults) or verified.err[:150])
    fillers = (target / "lost.jsonl").exists()
    codes = sorted({row["code"] for row in audited.rows} - ({"queueOffsetGap"} if fillers else set()) - kept)
    if codes:
        group.say("result", "salvage and audit", ", ".join(codes))
    _check_bytes(group, target)
    if not group.log_of and len(group.given) > 1:
        for difference in heal_differences([group.folder / name for name in group.stores], target):
            group.say("heal", "heal and salvage", difference)
            break
    if group.is_main_planned:
        _check_with_sources(group)


def _check_with_sources(group: Group) -> None:
    found = diff(group.folder, ["result", *group.stores], group.world.kind)
    if found is None:
        group.say("result", "salvage and diff", "no verdict")
        return
    member = next((each for each in found.members if Path(each["path"]).name == "result"), None)
    if member is None:
        group.say("result", "salvage and diff", "the result is no member")
        return
    unclear = group.project(member["unclear"]["ranges"])
    if member["start"] == "unknown" and unclear and unclear <= losses_of_plan(group).unclear:
        return  # the plan said so
    if member["start"] not in STARTS:
        group.say("result", "salvage and diff", f"start {member['start']}: {member['text'][:160]}")
    elif group.world.kind != LEDGER and member["start"] == "slave" and not group.log_of:
        group.say("result", "salvage and diff", f"slave: {member['text'][:160]}")
    elif (
        group.world.kind == LEDGER and member["elect"] == "no" and not group.log_of and not listed_ends(group.plan.err)
    ):
        group.say("result", "salvage and diff", f"elect no: {member['text'][:160]}")


def _check_bytes(group: Group, target: Path) -> None:
    """Each entry of the result that no list names is one that some replica has intact, if one has it.

    What was acknowledged is not of another history.
    """
    folder = next(target.glob("dledger-*/data"), target / "commitlog")
    files = {int(path.name): path.read_bytes() for path in sorted(folder.iterdir())}
    listed: set[Number] = set()
    for name in ("lost.jsonl", "decided.jsonl"):
        for row in run_lines(target / name):
            listed |= group.project_row(row, [each for replica in group.given for each in replica.entries])
    named = losses_of_plan(group)
    listed |= named.lost | named.unclear
    candidates: dict[int, set[Entry]] = defaultdict(set)
    for each in group.given:
        for entry in each.entries:
            candidates[entry.number].add(entry)
    intact = {entry for entries in group.truth.values() for entry in entries}
    bases = sorted(files, reverse=True)
    wrong: set[Number] = set()
    for place, entry in enumerate(group.world.main):
        known = {entry} if place < group.world.committed else candidates[entry.number]
        base = next((each for each in bases if each <= entry.pos), None)
        if base is None or entry not in intact or entry.number in listed:
            continue
        if not any(files[base][each.pos - base : each.end - base] == each.data for each in known):
            wrong.add(entry.number)
    if wrong:
        group.say("truth: wrong copy", "salvage", shown(wrong))


def run_lines(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def summary(group: Group) -> dict[str, object]:
    """What the verbs say, without the order of the arguments."""
    found: dict[str, object] = {}
    for verb, each in losses(group).items():
        found[f"{verb}: lost"], found[f"{verb}: unclear"] = each.lost, each.unclear
    if group.verdict is not None:
        found["diff: code"] = group.verdict.ran.code
        for member in group.verdict.members:
            for key in ("start", "elect", "damaged", "unclear", "begin"):
                value = member.get(key)
                found[f"diff: {key} of {own_name(member['node'], group.stores)}"] = (
                    value["ranges"] if isinstance(value, dict) else value
                )
    found["lost: rows"] = sorted(
        (
            row["source"],
            row["pos"],
            str(row["size"]),
            *(
                tuple(sorted(own_name(each, group.stores) for each in row[key]))
                for key in ("lostOn", "intactOn", "unclearOn")
            ),
        )
        for row in group.lost.rows
    )
    found["plan: code"] = group.plan.code
    if group.plan.code != 2:
        plan: dict[Number, object] = {}
        for row in rows_of_kind(group, group.plan):
            if row["action"] == "leftOut":
                continue
            why = row["why"] if row["action"] == "copy" else ""
            for each in group.project_row(row):
                plan[each] = row["action"], why, tuple(sorted(own_name(name, group.stores) for name in row["sources"]))
        found["plan: rows"] = plan
    return found


def check_order(group: Group, draw: random.Random) -> None:
    """Another order of the arguments changes nothing."""
    given = list(group.given)
    while len(given) > 1 and given == group.given:
        draw.shuffle(given)
    other = Group(group.world, given, group.folder, group.log_of)
    _compare(group, "order", summary(group), summary(other))


def check_copied(group: Group, draw: random.Random) -> None:
    """A replica that is given twice counts once."""
    if (group.folder / "copy").exists():
        return
    copy = copied(group.world, draw)
    if copy.copy_of not in group.stores:
        return
    other = Group(group.world, [*group.given, copy], group.folder, group.log_of)
    before, after = losses(group), losses(other)
    for verb in before.keys() & after.keys():
        for name, one, two in zip(Losses._fields, before[verb], after[verb], strict=True):
            if verb == "lost" and name == "unclear":
                continue
            if one != two:
                group.say("copied replica", f"{verb} {name}", f"copy of {copy.copy_of}: {shown(one ^ two)}")
    if group.plan.code == other.plan.code == 2:
        return
    shutil.rmtree(group.folder / "twice", ignore_errors=True)
    chosen = ("--log-of", group.log_of) if group.log_of else ()
    run(group.folder, "salvage", *other.stores, "--to", "twice", "--undecided", "majority", *chosen)
    one, two = (_log_bytes(group.folder / name) for name in ("result", "twice"))
    if one and two and one != two:
        group.say(
            "copied replica",
            "salvage",
            f"copy of {copy.copy_of}: other bytes in {[n for n in one if one[n] != two.get(n)]}",
        )


def _log_bytes(target: Path) -> dict[str, bytes]:
    folder = next(target.glob("dledger-*/data"), target / "commitlog")
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())} if folder.is_dir() else {}


def _compare(group: Group, rule: str, one: dict[str, object], two: dict[str, object]) -> None:
    for key in sorted(one.keys() | two.keys()):
        if one.get(key) != two.get(key):
            group.say(rule, key, f"{str(one.get(key))[:150]} / {str(two.get(key))[:150]}")


def check(group: Group, seed: int) -> list[Contradiction]:
    """All contradictions of a group."""
    draw = random.Random(f"check {seed}")
    steps: list[Callable[[], None]] = [
        lambda: _choose(group),
        lambda: check_losses(group),
        lambda: check_claims(group),
        lambda: check_start(group),
        lambda: check_codes(group),
        lambda: check_check(group),
        lambda: check_alone(group),
        lambda: check_all_clear(group),
        lambda: check_result(group),
        lambda: check_order(group, draw),
    ]
    if draw.random() < 0.3:
        steps.append(lambda: check_copied(group, draw))
    if draw.random() < 0.3:
        steps.append(lambda: check_walk(group))
    for step in steps:
        try:
            step()
        except Crash as error:
            group.say("crash", str(error).split(":")[0].split()[0], str(error)[:300])
        except (KeyError, TypeError, ValueError) as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            group.say("output", f"{type(error).__name__} at {where.name}:{where.lineno}", str(error)[:200])
    return group.problems


def _choose(group: Group) -> None:
    """A plan of logs that diverged needs a choice: that of the leader, if it is given."""
    if group.plan.code == 2 and "log-of" in group.plan.err and group.world.leader in group.stores:
        del group.__dict__["plan"]
        group.log_of = str(group.folder / group.world.leader) if group.world.kind != LEDGER else group.world.leader
    if group.plan.code == 2 and not group.plan.err.startswith("dledger: "):
        group.say("crash", "plan", group.plan.err[:300])
