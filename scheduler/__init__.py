"""Planning: pure functions from a graph, a table of costs and a budget to a plan of one step."""
