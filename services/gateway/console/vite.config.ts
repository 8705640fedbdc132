import { readFileSync } from "node:fs";
import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig, type Plugin } from "vite";

/** The licences of what the built files contain, beside them. */
const licences: Plugin = {
  name: "licences",
  generateBundle() {
    const texts = ["svelte/LICENSE.md", "uplot/LICENSE"].map((file) => readFileSync(`node_modules/${file}`, "utf8"));
    this.emitFile({ type: "asset", fileName: "licences.txt", source: texts.join("\n\n") });
  },
};

const gateway = process.env.GATEWAY ?? "http://127.0.0.1:18080";

export default defineConfig({
  plugins: [svelte(), licences],
  // Data URLs would need an exception in the gateway's content security policy.
  build: { assetsInlineLimit: 0, modulePreload: { polyfill: false }, target: "es2022" },
  server: { proxy: { "/v1": gateway, "/sign-in": gateway } },
});
