"""`report.html` and `loss.svg`: pictures of a run, made from its directory alone, finished or not.

Runs of any length are read line by line and drawn from at most `totals.MOST` points a curve, extremes kept.
"""
