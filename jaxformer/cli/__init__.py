"""The commands: `python -m jaxformer COMMAND`."""
