"""What a method holds, where, and at which time: the plan, its dry run, the planner, the resources of a plan."""
