"""Record sessions at the seam; verify them, serve them again, read them."""
