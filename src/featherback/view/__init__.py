"""Everything a person sees of a run: the terminal's live view, the notebook's, and the report."""
