"""Losses, which leave averaging to the caller, and loss terms added by parts of a model."""
