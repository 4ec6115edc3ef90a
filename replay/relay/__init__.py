"""A relay between an unmodified agent and a real upstream: bytes pass as they are, and both directions are recorded."""
