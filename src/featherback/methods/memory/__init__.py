"""Memory of a method: the plan, its dry run, the planner, and the resources that a plan allocates."""
