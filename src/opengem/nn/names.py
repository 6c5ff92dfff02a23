"""Names from a user's schema as names of modules."""


def module_key(name: str) -> str:
    """Return a key that `nn.ModuleDict` and `nn.ParameterDict` take for any column name.

    They refuse names with a dot and names of their own attributes, and "type", "keys" or "geo.city" are ordinary
    columns.
    """
    return "@" + name.replace("%", "%25").replace(".", "%2E")
