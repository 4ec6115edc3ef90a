"""Load made of agent sessions: their shapes, and rollouts that have them."""
