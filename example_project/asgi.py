"""The ASGI application of the example project: ``python -m daphne example_project.asgi:application``."""

import os

from channels.routing import ProtocolTypeRouter, URLRouter
from django.conf import settings
from django.contrib.staticfiles.handlers import ASGIStaticFilesHandler
from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "example_project.settings")

# First of all: it sets Django up, which whatever imports models relies on.
http = get_asgi_application()
if settings.DEBUG:
    http = ASGIStaticFilesHandler(http)

from channels.auth import AuthMiddlewareStack  # noqa: E402

from workflow.routing import websocket_urlpatterns  # noqa: E402

# The sockets look at Origin and permissions themselves; the stack tells them who is logged in.
application = ProtocolTypeRouter(
    {"http": http, "websocket": AuthMiddlewareStack(URLRouter(websocket_urlpatterns))}
)
