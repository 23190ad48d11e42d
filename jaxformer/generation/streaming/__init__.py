"""Text that is shown as it is generated."""
