"""The rules of time in plain Python: what a request may know, and what makes a label."""

from typing import Any

Row = dict[str, Any]


def request_times(impressions: list[Row]) -> dict[tuple[Any, Any], int]:
    """Return the time of each (user, request): the earliest of its rows."""
    times: dict[tuple[Any, Any], int] = {}
    for row in impressions:
        key = (row["user"], row["request"])
        times[key] = min(times.get(key, row["ts"]), row["ts"])
    return times


def known_from(event: Row, times: dict[tuple[Any, Any], int]) -> int:
    """Return when an event became known: never before it happened, arrived, or its own request was made."""
    own = times.get((event["user"], event.get("request")), event["ts"])
    return max(event["ts"], event["arrived"], own)


def history(user: Any, request: Any, events: list[Row], times: dict[tuple[Any, Any], int]) -> list[Row]:
    """Return the user's events known strictly before the request, none of them its own, in order of knowing."""
    now = times[user, request]
    seen = [
        event
        for event in events
        if event["user"] == user and event.get("request") != request and known_from(event, times) < now
    ]
    return sorted(seen, key=lambda event: (known_from(event, times), event["ts"]))


def label(
    index: int, impressions: list[Row], events: list[Row], type_: str, within: int, attribution: str
) -> float | None:
    """Return 1, 0 or None (window still open) for the impression `index`; impressions stand in stored order."""
    shown = impressions[index]
    for event in events:
        fits = [
            i
            for i, row in enumerate(impressions)
            if (row["user"], row["ad"]) == (event["user"], event["item"])
            and event["request"] in (None, row["request"])
            and row["ts"] < event["ts"]
        ]
        if attribution == "last":
            fits = sorted(fits, key=lambda i: (impressions[i]["ts"], i))[-1:]
        if event["type"] == type_ and index in fits and event["ts"] <= shown["ts"] + within:
            return 1.0
    end = max((event["ts"] for event in events), default=None)
    return 0.0 if end is not None and shown["ts"] + within <= end else None


def profile(user: Any, now: int, profiles: list[Row]) -> Any:
    """Return the country of the profile in effect and written by `now`; the last in effect, then written, wins."""
    held = [p for p in profiles if p["user"] == user and p["effective"] <= now and p["written"] <= now]
    return max(held, key=lambda p: (p["effective"], p["written"]))["country"] if held else None
