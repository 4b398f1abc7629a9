"""One algebra of sizes: expressions over names, the elements and the shapes that operators make of them, and
sizes that a plan for integers is traced with. `by_operator` has the rules."""
