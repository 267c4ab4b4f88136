"""Why two prompts share less than they should: `kvpool why-miss`."""
