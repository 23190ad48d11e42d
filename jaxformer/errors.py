"""The errors a user can cause, each with a message that names what to change."""


class ConfigError(ValueError):
    """A field of a configuration has a value that cannot work; raised before any compilation."""


class DataError(ValueError):
    """A file, line or corpus cannot be used; names the file, the line and what would be right."""
