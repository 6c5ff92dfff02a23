"""The truth, recomputed in plain Python from the files alone: no simulator code, no simulator state."""

import bisect
import json
import math
from collections import defaultdict

import pytest

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
SURFACES = ["feed", "reels", "stories", "messaging"]
FORMATS = ["image", "video", "carousel", "card", "text"]
DEVICES = ["android", "ios", "web", "tablet"]
AGES = ["13-17", "18-24", "25-34", "35-44", "45-54", "55+"]


def past(events, row):
    """Events of the user strictly before the request, one after the other."""
    return [e for e in events[row["user_id"]] if e["time"] < row["time"]]


def raw_values(row, events, ads, users, constants):
    t, ad = row["time"], ads[row["ad_id"]]
    history = past(events, row)
    same = [e for e in history if e["category"] == ad["category"]]
    touch = [e for e in same if e["type"] in ("view", "like", "search")]
    values = {"lasting": math.log(1 + len({e["time"] // DAY for e in touch})) / math.log(11)}

    values["curiosity"] = 0.0
    if len(touch) >= 4:
        times = [e["time"] for e in touch]
        if max(times) - min(times) <= HOUR:
            values["curiosity"] = 0.5 ** ((t - max(times)) / (2 * DAY))

    def decayed(kinds, half_life):
        return sum(0.5 ** ((t - e["time"]) / half_life) for e in same if e["type"] in kinds)

    ticks = ("view", "like", "search", "click")
    s = decayed(ticks, 10 * MINUTE)
    values["recency_minutes"] = s / (1 + s)
    s = decayed(ticks, DAY)
    values["recency_day"] = s / (1 + s)
    values["recency_fortnight"] = math.log(1 + decayed(ticks, 14 * DAY)) / math.log(11)

    shown = [e["time"] for e in history if e["type"] == "impression" and e["advertiser"] == ad["advertiser"]]
    values["fatigue"] = 0.0
    if shown:
        lately = sum(1 for at in shown if at >= t - 2 * DAY)
        values["fatigue"] = 0.6 * math.log(1 + lately) + 0.5 ** ((t - max(shown)) / (6 * HOUR))

    searches = [e["time"] for e in same if e["type"] == "search"]
    answered = 0
    for e in same:
        if e["type"] == "view" and e["time"] >= t - 3 * DAY:
            place = bisect.bisect_left(searches, e["time"])
            answered += place > 0 and e["time"] - searches[place - 1] <= 10 * MINUTE
    values["order"] = min(answered, 2) / 2

    liked = [ads[e["item_id"]]["creative"] for e in history if e["type"] == "like"]
    values["taste"] = 0.0
    if liked:
        mean = [math.fsum(column) / len(liked) for column in zip(*liked, strict=True)]
        dot = math.fsum(a * b for a, b in zip(mean, ad["creative"], strict=True))
        values["taste"] = dot / (math.hypot(*mean) * math.hypot(*ad["creative"]))

    meant = {"reels": ("like",), "messaging": ("search",)}.get(row["surface"], ())
    values["context"] = math.log(1 + decayed(meant, 14 * DAY)) / math.log(3)

    age = AGES.index(users[row["user_id"]]["age_band"])
    form, device = FORMATS.index(ad["format"]), DEVICES.index(row["device"])
    surface = SURFACES.index(row["surface"])
    values["cross_age_category"] = constants["age_category"][age][ad["category"]]
    values["cross_device_format"] = constants["device_format"][device][form]
    values["cross_hour_surface"] = constants["hour_surface"][t % DAY // (6 * HOUR)][surface]
    values["cross_age_format_surface"] = constants["age_format_surface"][age][form][surface]
    created = ad["created"].toordinal() - 719163
    warm = min(max((t - created * DAY) / (7 * DAY), 0.0), 1.0)
    values["ad"] = (
        constants["advertiser"][ad["advertiser"]]
        + constants["category"][ad["category"]]
        + constants["format"][form]
        + constants["own"][row["ad_id"]] * warm
    )
    values["price"] = math.log(ad["price"]) - 3.0
    return values


def expected_terms(row, values, constants):
    day = (row["time"] - constants["start_ms"]) // DAY
    surface = SURFACES.index(row["surface"])
    terms = {}
    for task, strengths in constants["coefficient"].items():
        terms[f"{task}_base"] = constants["base"][task][surface]
        for term, strength in strengths.items():
            level = 1 + constants["drift_swing"][term] * math.sin(
                2 * math.pi * day / constants["days"] + constants["drift_phase"][term]
            )
            if day >= constants["jump_day"]:
                level += constants["drift_jump"][term]
            factor = constants["surface_factor"][term][surface] * max(0.1, level)
            terms[f"{task}_{term}"] = strength * factor * values[term]
    return terms


def test_truth_equals_a_recomputation_from_the_files_alone(small):
    constants = json.loads((small.path / "truth" / "parameters.json").read_text())
    ads = {row["ad_id"]: row for row in small.ads.to_pylist()}
    users = {row["user_id"]: row for row in small.users.to_pylist()}
    events = defaultdict(list)
    for event in sorted(small.events.to_pylist(), key=lambda e: e["time"]):
        events[event["user_id"]].append(event)
    truth = {row["impression_id"]: row for row in small.truth.to_pylist()}

    rows = small.impressions.to_pylist()
    assert len(truth) == len(rows)
    sample = rows[:: max(1, len(rows) // 700)]
    different = defaultdict(set)
    for row in sample:
        terms = expected_terms(row, raw_values(row, events, ads, users, constants), constants)
        told = truth[row["impression_id"]]
        assert set(terms) == {c for c in told if c.startswith(("click_", "conversion_", "like_"))}
        for name, value in terms.items():
            assert told[name] == pytest.approx(value, abs=1e-6), (row, name)
            different[name].add(round(value, 6))
        for task in ("click", "conversion", "like"):
            logit = sum(value for name, value in terms.items() if name.startswith(f"{task}_"))
            p = 1 / (1 + math.exp(-logit))
            if task == "conversion":
                # Log-normal delay, median 18 h, spread 1.3: the share within 7 days.
                p *= 0.5 * math.erfc(-math.log(168 / 18) / 1.3 / math.sqrt(2))
            if task == "like" and row["surface"] in ("stories", "messaging"):
                assert told["p_like"] is None
            else:
                assert told[f"p_{task}"] == pytest.approx(p, abs=1e-6)
    # Every term was really at work in the sample.
    few = {name: len(seen) for name, seen in different.items() if len(seen) < 3 and name[-5:] != "_base"}
    assert not few
    assert {row["surface"] for row in sample} == set(SURFACES)
