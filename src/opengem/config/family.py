"""Families of configurations told apart by `type`, registered by the class statement."""

from typing import Any, ClassVar

from opengem.errors import ConfigError, nearest


class Family:
    """Base of a family of config dataclasses.

    A direct subclass is the family; a subclass of that with `type="name"` is a member:

        class ModelConfig(Family): ...
        class GEMConfig(ModelConfig, type="gem"): ...
    """

    type: ClassVar[str] = ""
    members: ClassVar[dict[str, Any]]

    def __init_subclass__(cls, *, type: str = "", **kwargs: Any) -> None:
        """Register the class under its type name."""
        super().__init_subclass__(**kwargs)
        if Family in cls.__bases__:
            cls.members = {}
        if type:
            # a class with slots or a reloaded module defines the same name again: the newest wins
            cls.type = type
            cls.members[type] = cls

    @classmethod
    def member(cls, name: str, key: str) -> Any:
        """Return the member class called `name`; `key` is the dotted setting named in the error."""
        if name not in cls.members:
            known = ", ".join(sorted(cls.members))
            raise ConfigError(f'{key} must be one of {known}. Received: "{name}"{nearest(name, cls.members)}')
        return cls.members[name]
