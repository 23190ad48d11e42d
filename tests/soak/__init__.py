"""Attacks that stay: kills, damaged files, hostile folders, and fuzzed commands, configs and calls.

``make soak`` runs them and prints one table. Every trial is made from its part, its index and one
seed, so that a failing one can be repeated alone.
"""
