"""How calibrators are fitted: solvers, regressions and reductions that several methods share."""
