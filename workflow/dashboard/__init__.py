"""Pages to watch runs live and to steer them: ``path("dashboard/", include("workflow.dashboard.urls"))``.

Plain Django templates and a few JavaScript modules; without JavaScript they show what is, without moving. They
read, and leave every change to the manager.
"""
