"""Small experiments on attention, each with numbers, a figure and a conclusion."""
