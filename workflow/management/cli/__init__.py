"""One module for each command: `list.py` is `workflow:list`. One that begins with "_" is none."""
