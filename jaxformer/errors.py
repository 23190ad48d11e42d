"""The errors a user can cause, each with a message that names what to change."""


class ArgumentError(ValueError):
    """An argument of a function has a value that cannot work."""


class ConfigError(ArgumentError):
    """A field of a configuration has a value that cannot work; raised before any compilation."""


class DataError(ValueError):
    """A file, line or corpus cannot be used; names the file, the line and what would be right."""


class RunError(RuntimeError):
    """A run had to stop, or its checkpoints cannot be used; says what is kept and what to do."""


def check_argument(name: str, value: object, valid: bool, expected: str) -> None:
    """Raises ArgumentError unless `valid`: "softcap = 0: must be a positive, finite number".

    Args:
        name: The argument as its caller knows it.
        value: What was given.
        valid: Whether it can work.
        expected: What would be right; completes "must be ...".
    """
    if not valid:
        raise ArgumentError(f"{name} = {shortened(value)}: must be {expected}")


def check_field(owner: object, field: str, valid: bool, expected: str) -> None:
    """Raises ConfigError naming the field, its value and what would be right, unless `valid`."""
    if not valid:
        value = getattr(owner, field)
        name = f"{type(owner).__name__}.{field}"
        raise ConfigError(f"{name} = {shortened(value)}: must be {expected}")


def system_message(error: OSError) -> str:
    """What the system refused, as people read it: "runs/a/config.json: Permission denied"."""
    reason = error.strerror or str(error) or type(error).__name__
    return reason if error.filename is None else f"{error.filename}: {reason}"


def shortened(value: object) -> str:
    """Returns a value as Python writes it, cut where it would fill the screen."""
    if isinstance(value, int) and value.bit_length() > 200:  # Python refuses to print huge ones
        return f"an integer of {value.bit_length()} bits"
    if getattr(value, "ndim", 0):
        return f"an array of {value.dtype} {tuple(value.shape)}"
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}... ({type(value).__name__})"
