"""A study, or any folder of runs, as one honest page; and two or more of them side by side."""
