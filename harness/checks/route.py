"""route_witnessed, kernel_witnessed: which way was taken, and by what."""

import signal

from ..kernels.symbols import backends_of
from ..observation import CaseObservation, RouteObservation
from ..outcome import Outcome
from .verdict import Tally


def route_witnessed(seen: CaseObservation, tally: Tally) -> str:
    """The weights came by the way that the route names: by inotify, the engine's word and the map."""
    # inotify first: it needs nothing from the engine, so an engine that died on the way is caught too.
    for route in seen.in_order():
        _require_files(route, tally)
    if tally.failed:
        return ""
    for route in seen.in_order():
        name, want, taken = route.route.name, route.route.must_observe, route.said("route_taken")
        detail = f"Route {name} took {taken!r}, not {want!r}."
        tally.require(taken == want, Outcome.WRONG_ROUTE, detail, route=name, found=taken)
        mapped, pid = route.said("mapped_bytes"), route.said("daemon_pid")
        if route.route.shares:
            detail = f"Route {name} is not attached to this daemon."
            same = pid == seen.daemon.pid and mapped > 0
            tally.require(same, Outcome.WRONG_ROUTE, detail, route=name, expected=seen.daemon.pid, found=pid)
            detail = f"On route {name} the daemon did not hand out its memory exactly once."
            once = route.attachments == 1
            tally.require(once, Outcome.WRONG_ROUTE, detail, route=name, found=route.attachments)
        else:
            alone = mapped == 0 and pid is None
            detail = f"Route {name} mapped a daemon's memory."
            tally.require(alone, Outcome.WRONG_ROUTE, detail, route=name, daemon_pid=pid)
        _require_loss(seen, route, tally)
    return "Each route took its own way: disk, fallback, attach, attach."


def _require_loss(seen: CaseObservation, route: RouteObservation, tally: Tally) -> None:
    """The engine tells a daemon that was killed under it from one that lives, and so does its exit status."""
    killed, lost = route.daemon_killed, route.said("daemon_lost")
    detail = f"On route {route.route.name} the daemon {'was' if killed else 'was not'} killed, and"
    detail += f" the engine says that it {'is' if lost else 'is not'} lost."
    tally.require(lost is killed, Outcome.WRONG_ROUTE, detail, route=route.route.name, found=lost)
    gone = not killed or seen.daemon.exit == -signal.SIGKILL
    detail = f"The daemon was to be killed on route {route.route.name}, and ended otherwise."
    tally.require(gone, Outcome.INCOMPLETE, detail, route=route.route.name, found=seen.daemon.exit)


def _require_files(route: RouteObservation, tally: Tally) -> None:
    name, opened = route.route.name, route.files_opened
    if route.route.shares:
        detail = f"Route {name} opened weight files, though it must only attach."
        tally.require(not opened, Outcome.WRONG_ROUTE, detail, route=name, files_opened=opened)
        detail = f"Route {name} ran without a decoy."
        # One that never started, for want of a daemon, has a verdict of its own.
        tally.require(route.decoy or route.pid is None, Outcome.WRONG_ROUTE, detail, route=name)
    elif route.outcome is Outcome.PASS:
        detail = f"Route {name} never opened a weight file, though it must read the disk."
        tally.require(bool(opened), Outcome.WRONG_ROUTE, detail, route=name, files_opened=opened)


def kernel_witnessed(seen: CaseObservation, tally: Tally) -> str:
    """The case's kernel ran on every route."""
    for route in seen.in_order():
        ran, backend = route.said("kernels"), seen.case.kernel
        if seen.case.device == "cuda":
            named = backends_of(ran) == {backend}
        else:
            named = bool(ran) and all(k == backend or k.startswith(f"{backend}_") for k in ran)
        detail = f"Route {route.route.name} ran {ran or 'no kernel'}, not backend {backend!r} alone."
        tally.require(named, Outcome.WRONG_KERNEL, detail, route=route.route.name, kernels=ran)
    return f"A {seen.case.kernel} kernel ran on every route."
