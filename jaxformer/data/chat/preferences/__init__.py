"""Preferences: pairs of answers, and answers that are judged alone."""
