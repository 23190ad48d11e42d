"""Preferences: pairs of answers, and single answers with a judgement."""
