"""What every result of a conversion must satisfy, whatever the source was."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

from listing import Listing, has_surrogate
from losses import losses, separated
from oracles import Contents, contents_of_hash
from session import Made, Session

LISTINGS = (
    ("tree",), ("tree", "--json"), ("ls",), ("ls", "--json"), ("groups",), ("groups", "--json"),
    ("show",), ("latest",), ("hash",), ("verify", "--quick"), ("verify", "--json"), (), ("--json",),
)  # fmt: skip
SHOWN_MAX = 3


def look_at(session: Session, choice: random.Random) -> None:
    """Two of the commands that only read."""
    for words in choice.sample(LISTINGS, 2):
        more = ("/a",) if "show" in words else ()
        session.run("ckpt-inspect", *words[:1], session.source, *more, *words[1:])


def check_hash(session: Session, expected: Contents) -> None:
    """`hash` names each tensor as the oracle has it: the same paths, the same bytes."""
    outcome = session.run("ckpt-inspect", "hash", session.source, "--json")
    if outcome.code != 0:
        return
    ours = contents_of_hash(outcome.json())
    # What is no Unicode has no form in JSON: only the contents are compared then.
    exact = {path for path in expected if not has_surrogate(path)}
    for path in sorted(exact | {path for path in ours if path not in expected}):
        if ours.get(path) != expected.get(path) and (path in exact or exact == set(expected)):
            detail = f"{path!r}: {ours.get(path)} | torch: {expected.get(path)}"
            session.report("hash lists what torch reads", detail)
            return
    if total(ours) != total(expected):
        session.report("hash lists what torch reads", f"{total(ours)} | torch: {total(expected)}")


def total(found: Contents) -> Counter:
    return sum(found.values(), Counter())


def check_content(
    session: Session, made: Made, expected: object, actual: object, *via: Made
) -> None:
    """Everything in `expected` is in `actual`, or listed by one of the conversions."""
    listing = Listing(*(step.report for step in via), made.report)
    found = listing.unlisted(losses(expected, actual))
    shared = [
        group for group in separated(expected, actual)
        if not any(listing.covers(loss) for loss in group)
    ]  # fmt: skip
    for loss in [*found, *(group[0] for group in shared)][:SHOWN_MAX]:
        name = f"{loss.aspect.value} is listed"
        session.report(name, f"{' '.join(made.outcome.command)}\n  {loss}\n  {listing.entries[:8]}")
    if "--strict" in made.outcome.command and made.report["not_carried"]:
        session.report("--strict lists nothing", made.report["not_carried"])


def check_reads(session: Session, made: Made, read: Callable[[], object]) -> object | None:
    """The oracle opens what we wrote."""
    try:
        return read()
    except Exception as problem:
        told = f"{type(problem).__name__}: {str(problem)[-300:]}\n  {made.outcome}"
        session.report("torch reads the result", told)
        return None


def check_verifies(session: Session, made: Made, source_code: int) -> None:
    """verify finds nothing in the result that it did not find in the source."""
    outcome = session.run("ckpt-inspect", "verify", made.path)
    if outcome.code > max(source_code, 1) or (source_code == 0 and outcome.code != 0):
        told = f"source: exit {source_code}\n  {' '.join(made.outcome.command)}"
        session.report("verify accepts the result", f"{outcome}\n  {told}")
