"""What can stand behind the server: one file for each kind of model server."""
