import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig } from "vite";

const gateway = process.env.GATEWAY ?? "http://127.0.0.1:18080";

export default defineConfig({
  plugins: [svelte()],
  // Data URLs would need an exception in the gateway's content security policy.
  build: { assetsInlineLimit: 0, modulePreload: { polyfill: false }, target: "es2022" },
  server: { proxy: { "/v1": gateway, "/sign-in": gateway } },
});
