"""The only writer of statuses: settling, claiming, heartbeats, deliveries, and the commands' conditional updates."""
