"""What a person sees of a run: terminal, notebook, report."""
