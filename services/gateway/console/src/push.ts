// Notifications in this browser (Web Push).
import { get, post, put, remove } from "./api";
import type { Notification, NotificationView } from "./types";

type Push = { key?: string; notifications?: NotificationView[] };

/** Whether this browser can show notifications, which needs https or the fleet's own machine. */
export const possible = (): boolean => "serviceWorker" in navigator && "PushManager" in window;

/** The current user's browsers; undefined: the fleet does not notify browsers. */
export async function browsers(): Promise<Push | undefined> {
  return get<Push>("/v1/push").catch(() => undefined);
}

/** This browser's subscription; null if it has none. */
export async function current(): Promise<PushSubscription | null> {
  if (!possible()) return null;
  const registration = await navigator.serviceWorker.getRegistration("/");
  return (await registration?.pushManager.getSubscription()) ?? null;
}

/** Ask the browser for permission and subscribe it; return its notification. */
export async function allow(key: string, severity: string): Promise<NotificationView> {
  await navigator.serviceWorker.register("/push.js");
  const registration = await navigator.serviceWorker.ready;
  const subscription = await registration.pushManager.subscribe({ userVisibleOnly: true, applicationServerKey: key });
  const { endpoint, keys } = subscription.toJSON();
  const push = { endpoint, p256dh: keys?.p256dh, auth: keys?.auth };
  return put<NotificationView>("/v1/push", { push, severity } as Notification);
}

/** Stop notifying a browser. */
export async function end(id: string, endpoint: string): Promise<void> {
  await remove(`/v1/push/${encodeURIComponent(id)}`);
  const subscription = await current();
  if (subscription?.endpoint === endpoint) await subscription.unsubscribe();
}

export const test = (id: string) => post<{ delivered?: boolean; detail?: string }>(`/v1/push/${encodeURIComponent(id)}/test`);
