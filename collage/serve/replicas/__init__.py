"""Replicas of a server behind one door, on a Ray cluster."""
