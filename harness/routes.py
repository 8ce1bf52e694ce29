"""The four routes as a table: what each is given, and what must be observed."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One of the four loads. Each is an engine life of its own and exits before the next."""

    name: str
    loader: str
    """`disk` reads the checkpoint; `cache` asks the daemon."""
    daemon_present: bool
    """Whether a daemon listens on the socket the engine is given."""
    fallback_allowed: bool
    """Whether the cache loader may read the disk when there is no daemon."""
    must_observe: str
    """The `route_taken` that the witness has to show."""
    decoy: bool
    """Whether the weight files the engine can see are decoys."""

    @property
    def shares(self) -> bool:
        """Whether the weights must lie in the daemon's memory (and must not otherwise)."""
        return self.must_observe == "attach"


ROUTES: tuple[Route, ...] = (
    Route(
        name="ordinary",
        loader="disk",
        daemon_present=False,
        fallback_allowed=False,
        must_observe="disk",
        decoy=False,
    ),
    Route(
        name="fallback",
        loader="cache",
        daemon_present=False,
        fallback_allowed=True,
        must_observe="fallback",
        decoy=False,
    ),
    Route(
        name="ipc",
        loader="cache",
        daemon_present=True,
        fallback_allowed=False,
        must_observe="attach",
        decoy=True,
    ),
    Route(
        name="ipc-repeat",
        loader="cache",
        daemon_present=True,
        fallback_allowed=False,
        must_observe="attach",
        decoy=True,
    ),
)

REFERENCE_ROUTE = ROUTES[0]
"""The route that the other three are compared with."""
