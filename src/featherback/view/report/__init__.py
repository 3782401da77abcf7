"""Write `report.html` and `loss.svg`: charts of a run, drawn from its directory, whether or not it has finished.

Runs of any length work: metrics are read line by line, and a curve has at most `totals.MOST` points, with its extremes.
"""
