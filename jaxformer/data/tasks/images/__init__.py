"""Labelled images, images with texts, and images of which patches are hidden."""
