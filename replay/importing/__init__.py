"""Recordings made of what other tools have kept: each format becomes conversations, which a real session then answers."""
