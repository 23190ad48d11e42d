"""Sounds with what is said in them."""
