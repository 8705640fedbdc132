// Writes src/schema.d.ts from the schemas of the OpenAPI document, which are made from protos/.
import { readFileSync, writeFileSync } from "node:fs";
import openapiTS, { astToString } from "openapi-typescript";

const schemas = JSON.parse(readFileSync(new URL("../schemas.json", import.meta.url), "utf8"));
const document = { openapi: "3.1.0", info: { title: "Lookout", version: "1" }, paths: {}, components: { schemas } };
writeFileSync(new URL("src/schema.d.ts", import.meta.url), astToString(await openapiTS(document)));
