"""Where Django looks for this app's commands. `workflow.management.finder` answers for this folder."""
