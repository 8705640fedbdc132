"""The channels through which messages reach their targets: webhooks, Apprise, MQTT, Web Push."""
