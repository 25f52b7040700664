"""Living documentation: one idea a test, to be read in order of the files' numbers."""
