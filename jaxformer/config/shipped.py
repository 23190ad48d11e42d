"""The configs that come with the library, by name."""

from pathlib import Path

from jaxformer.errors import ConfigError, did_you_mean

_PACKAGE = Path(__file__).parents[1]
# In a wheel the configs are inside of the package, in the repository beside it.
_FOLDERS = (_PACKAGE / "configs", _PACKAGE.parent / "configs")


def shipped_names() -> list[str]:
    """Returns the names of the configs that come with the library: "tiny_decoder", ..."""
    return sorted(path.stem for path in _folder().glob("*.py"))


def config_spec(name: str) -> str:
    """Finds the config that a user names."""
    stem, colon, argument = name.partition(":")
    path = Path(stem)
    if path.is_file():
        return name
    if stem in shipped_names():
        return f"{_folder() / stem}.py{colon}{argument}"
    if path.exists() or path.suffix == ".py" or len(path.parts) > 1:
        return name
    names = shipped_names()
    advice = did_you_mean(stem, names) or f"; choose one of {', '.join(names)}"
    raise ConfigError(f"{stem!r} is neither a file nor the name of a config{advice}")


def _folder() -> Path:
    return next((folder for folder in _FOLDERS if folder.is_dir()), _FOLDERS[0])
