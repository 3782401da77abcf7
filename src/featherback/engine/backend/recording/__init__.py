"""A device that writes down what a pass computes, with places instead of values."""
