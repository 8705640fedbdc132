"""How a message reaches its target: webhooks, Apprise, MQTT."""
