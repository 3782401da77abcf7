"""Where bytes live: the scratch arena, paged arrays, the weight pager, the plan and the meter."""
