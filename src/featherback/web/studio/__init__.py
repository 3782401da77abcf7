"""The studio: a page in the browser for the whole way from examples to a trained model.

The page is a client of the command line. To do something, it starts a `featherback` command, which it also shows. To
show a run, it reads the run's directory. So nothing is described twice, each command has its own memory, and a run goes
on when the page or its server ends.
"""
