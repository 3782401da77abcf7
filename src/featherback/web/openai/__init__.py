"""The OpenAI API over one model and its adapters."""
