"""The channels by which a message reaches its target: webhooks, Apprise, MQTT, Web Push."""
