"""The cases of the catalogue that the tests in this folder hold, by stage."""

COVERED = {
    "schema": ("SC01", "SC02", "SC04", "SC05", "SC06"),
    "ingest": (
        "IN01", "IN02", "IN03", "IN04", "IN07", "IN08", "IN09", "IN10", "IN11", "IN12", "IN13", "IN14",
    ),
    "point in time": ("PT01", "PT02", "PT03", "PT04", "PT05", "PT08", "PT09", "PT10", "PT11"),
    "sequence store": ("SQ01", "SQ03", "SQ04", "SQ05"),
    "batching, loader": ("BA01", "BA02", "BA03", "BA04", "BA06"),
    "model, numerics": ("NU01", "NU03", "NU04", "NU05", "NU06", "NU07", "NU08"),
    "metrics": ("ME01", "ME02", "ME03", "ME04", "ME06", "ME07", "ME08"),
    "checkpoint, resume": ("CK01", "CK02", "CK03", "CK05", "CK06", "CK07", "CK08"),
    "export, parity": ("EX01", "EX03", "EX04", "EX05", "EX06"),
    "serving": ("SV01", "SV02", "SV03", "SV04", "SV05", "SV06"),
    "transfer": ("TR01",),
    "install": ("IS01",),
}  # fmt: skip
"""Stage -> ids. Each has a test named `test_ID_...` here."""
