"""What was used, by whom, of which model: one record for each response, written beside the turns."""
