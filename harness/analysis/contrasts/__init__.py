"""Two arms held against each other: a ratio, its interval, a corrected p, an outcome, a sentence; one engine for all that compare."""
