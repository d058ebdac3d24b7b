"""What the shop does when the payment provider calls: it turns the call into a domain event, and no more.

In a web application this is the body of the view behind the provider's webhook URL.
"""

from __future__ import annotations

from typing import Any

from workflow import workflows


def receive(event: dict[str, Any]) -> None:
    """Publishes the provider's event; the run that waits for this order's payment goes on.

    `correlation` picks the run. `event_id` makes the provider's repetitions harmless: the same id counts
    once.
    """
    workflows.publish(
        event["type"], event["data"], correlation=event["data"]["order_id"], event_id=event["id"]
    )
