// Shows what the service notify sends to this browser, also while the console is closed.
self.addEventListener("push", (event) => {
  const message = event.data.json();
  const shown = self.registration.showNotification("Lookout", {
    body: message.text,
    tag: message.topic, // a newer message about an incident replaces the one before
    renotify: !message.silent,
    silent: message.silent,
    requireInteraction: message.critical,
    icon: "/icon.svg",
    data: message.place || (message.incident && `incidents/${encodeURIComponent(message.incident)}`),
  });
  event.waitUntil(shown);
});

self.addEventListener("notificationclick", (event) => {
  event.notification.close();
  event.waitUntil(self.clients.openWindow(`/#/${event.notification.data || ""}`));
});
