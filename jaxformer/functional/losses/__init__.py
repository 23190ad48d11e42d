"""Losses, all of which leave means to the caller, and terms that parts of a model add."""
