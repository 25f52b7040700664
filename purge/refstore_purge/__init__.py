"""The purge: find the rows of given ids in onboarded data sets, and rewrite the objects that have them, on Spark."""
