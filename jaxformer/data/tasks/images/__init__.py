"""Labelled images, images with texts, and images with masked patches."""
