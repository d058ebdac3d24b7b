"""Addresses of the live pages' websockets.

application = ProtocolTypeRouter({
    "http": get_asgi_application(),
    "websocket": AuthMiddlewareStack(URLRouter(websocket_urlpatterns)),
})
"""

from __future__ import annotations

from typing import Any

from django.urls import path

from workflow.consumers import RunConsumer, RunsConsumer

websocket_urlpatterns: list[Any] = [
    path("ws/workflow/", RunsConsumer.as_asgi()),
    path("ws/workflow/<uuid:run_id>/", RunConsumer.as_asgi()),
]
