"""The `workflow:*` commands of manage.py.

Importing this package is all it takes to make them known: `workflow.apps` does so.
"""

from workflow.management import finder

finder.install()
