"""The schema file of a world: what its tables, histories, features and tasks are."""

from opengem.data.synth.config import SynthConfig

_TABLES = """\
name = "world"

[tables.impressions]
path = "impressions/*.parquet"
id = "impression_id"
key = "request_id"
user = "user_id"
ad = "ad_id"
time = { column = "time", unit = "ms" }
surface = "surface"

[tables.events]
path = "events/*.parquet"
user = "user_id"
item = "item_id"
type = "type"
request = "request_id"
time = { column = "time", unit = "ms" }

[tables.users]
path = "users.parquet"
key = "user_id"

[tables.ads] # ads and organic items, in one id space
path = "ads.parquet"
key = "ad_id"
"""

# The events table has no creative; { name = "creative", kind = "vector" } looks it up in ads by the item.
_STREAMS = {
    "organic": (("view", "like", "search", "message"), ("item_id", "category", "type", "surface")),
    "ads": (("impression", "click", "conversion"), ("item_id", "category", "advertiser", "type", "surface")),
}
_TABLE_OF_ATTRIBUTE = {"item_id": "ad", "type": "event_type"}

_FEATURES = (
    ("age_band", "user", "id", None),
    ("country", "user", "id", None),
    ("time_zone", "user", "id", None),
    ("ad_id", "ad", "id", 'table = "ad"'),
    ("advertiser", "ad", "id", 'table = "advertiser"'),
    ("category", "ad", "id", 'table = "category"'),
    ("category_group", "ad", "id", None),
    ("format", "ad", "id", None),
    ("price", "ad", "number", None),
    ("creative", "ad", "vector", None),
    ("device", "context", "id", None),
    ("hour", "context", "id", 'derive = "hour"'),
    ("weekday", "context", "id", 'derive = "weekday"'),
)

_TASKS = """\
[[tasks]]
name = "click"
label = "click"

[[tasks]]
name = "conversion"
event = { table = "events", type = "conversion", within = "7d" }
given = "click"

[[tasks]]
name = "like"
label = "like"
surfaces = ["feed", "reels"]
"""


def schema_text(config: SynthConfig) -> str:
    """Write the schema of a world as TOML.

    Args:
        config: for the days of the splits.

    Returns:
        Text of `schema.toml`.
    """
    streams = "\n".join(_stream(name, *rest) for name, rest in _STREAMS.items())
    features = "\n".join(_feature(*feature) for feature in _FEATURES)
    splits = "".join(f'{name} = ["{first}", "{last}"]\n' for name, (first, last) in config.splits().items())
    return "\n".join((_TABLES, streams, features, _TASKS, f"[splits] # UTC days, both inside\n{splits}"))


def _stream(name: str, types: tuple[str, ...], attributes: tuple[str, ...]) -> str:
    """One history stream."""
    rows = "".join(
        f'  {{ name = "{a}", kind = "id", table = "{_TABLE_OF_ATTRIBUTE.get(a, a)}" }},\n' for a in attributes
    )
    listed = ", ".join(f'"{t}"' for t in types)
    return f'[[streams]]\nname = "{name}"\nfrom = "events"\ntypes = [{listed}]\nattributes = [\n{rows}]\n'


def _feature(name: str, owner: str, kind: str, extra: str | None) -> str:
    """One feature."""
    lines = [f'name = "{name}"', f'owner = "{owner}"', f'kind = "{kind}"', *([extra] if extra else [])]
    return "[[features]]\n" + "\n".join(lines) + "\n"
