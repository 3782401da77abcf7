"""Chat templates: conversations to text."""
