"""Recordings and reports as pages for a browser: one file each, which asks nothing of any network."""
