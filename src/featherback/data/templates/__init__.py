"""Chat templates, which turn conversations into text."""
