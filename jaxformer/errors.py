"""The errors a user can cause, each with a message that names what to change."""


class ConfigError(ValueError):
    """A field of a configuration has a value that cannot work; raised before any compilation."""


class DataError(ValueError):
    """A file, line or corpus cannot be used; names the file, the line and what would be right."""


def check_field(owner: object, field: str, valid: bool, expected: str) -> None:
    """Raises ConfigError naming the field, its value and what would be right, unless `valid`."""
    if not valid:
        value = getattr(owner, field)
        raise ConfigError(f"{type(owner).__name__}.{field} = {value!r}: must be {expected}")
