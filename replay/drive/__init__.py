"""A recorded client against a live backend: plays, measures, compares, reports."""
