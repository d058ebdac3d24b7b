"""The ASGI application of the example project: ``python -m daphne example_project.asgi:application``."""

import os

from channels.routing import ProtocolTypeRouter
from django.conf import settings
from django.contrib.staticfiles.handlers import ASGIStaticFilesHandler
from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "example_project.settings")

# First of all: it sets Django up, which whatever imports models relies on.
http = get_asgi_application()
if settings.DEBUG:
    http = ASGIStaticFilesHandler(http)

application = ProtocolTypeRouter({"http": http})
