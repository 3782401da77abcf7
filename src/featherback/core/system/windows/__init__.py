"""Windows 10 and later."""
