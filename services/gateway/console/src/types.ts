// Messages of the API, as protos/ has them.
import type { components } from "./schema";

type Schemas = components["schemas"];
export type Session = Schemas["SessionView"];
export type Camera = Schemas["CameraView"];
export type CameraSource = Schemas["Camera"];
export type Incident = Schemas["IncidentView"];
export type Watch = Schemas["Watch"];
export type WatchView = Schemas["WatchView"];
export type Zone = Schemas["Zone"];
export type Point = Schemas["Point"];
export type Timeline = Schemas["Timeline"];
export type Bucket = Schemas["TimelineBucket"];
export type Verdict = Schemas["Verdict"];
export type ClipFacts = Schemas["ClipFacts"];
export type Job = Schemas["JobView"];
export type Label = Schemas["Label"];
export type Past = Schemas["BacktestAnswer"];
export type PastIncident = Schemas["PastIncident"];
export type Coverage = Schemas["CoverageRow"];
export type Cost = Schemas["CostRow"];
export type Usage = Schemas["UsageRow"];
export type DeadLetter = Schemas["DeadLetterView"];
export type Fleet = Schemas["FleetView"];
export type Erasure = Schemas["ErasureView"];
export type Token = Schemas["ApiToken"];
export type Audit = Schemas["AuditEntry"];
export type FeedEvent = Schemas["Event"];
