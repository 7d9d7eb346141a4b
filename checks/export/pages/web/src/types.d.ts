// What Python hands over: see checks/export/pages/__init__.py, which says what each field means.

type Cells = { kind: string; blocks?: string; count?: number; tokens?: number; now?: boolean };
type Value = string | number | boolean;
type Row = {
  id: string;
  place: string;
  cells: Cells[];
  numbers: Record<string, Value | [Value, Value]>;
  note: string;
};
type Meter = {
  name: string;
  value: number;
  limit: number | null;
  unit: string;
  parts: [string, number][];
  over: boolean;
};
type Pool = {
  name: string;
  size: number;
  count: number;
  free: string;
  reserved: number;
  held?: string;
  shared?: [number, number][];
  cached?: string;
};
type LoggedEvent = {
  transition: string;
  id: string;
  rule: string;
  before?: unknown;
  after?: unknown;
};
type Situation = {
  step: number;
  time: number;
  kind: string;
  label: string;
  headline: string;
  arrived: string[];
  aborted: string[];
  finished: string[];
  meters: Meter[];
  rows: Row[];
  queues: { name: string; requests: { id: string; note: string }[] }[];
  pools: Pool[];
  refused: { rule: string; id: string | null } | null;
  events: LoggedEvent[];
  broken: [string, string][];
  speaks: string[];
  unjudged: string[];
};
type Frame = (Situation | null)[];
type Measure = { name: string; unit: string; limit: number | null; values: (number | null)[] };
type Overview = {
  count: number;
  labels?: string[];
  kinds: string;
  measures: Measure[];
  refused: Record<string, string>;
  broken: Record<string, string[]>;
  events: number[];
};
type Rule = { says: string; source: string; kind: string };
type Asked = { id: string; prompt_len: number; max_tokens: number } & Record<string, unknown>;
type Film = {
  title: string;
  about: string;
  policy: string;
  config: Record<string, unknown>;
  requests: Asked[];
  owners?: Record<string, string>;
  rules: Record<string, Rule>;
  sides: string[];
  overview: Overview;
  violation: { frame: number; rule: string; says: string; found: unknown; loop?: number } | null;
  divergence: {
    frame: number;
    fields: { field: string; place: string; expected: unknown; found: unknown }[];
  } | null;
  frames?: Frame[];
  packed?: { size: number; chunks: string[] };
};

type LiveSituation = {
  policy: string;
  config: Record<string, unknown>;
  requests: Record<string, unknown>[];
  external?: Record<string, number>;
  actions?: string[];
  at?: number;
  title?: string;
};
type Key = { name: string; type: string; default: Value | null; choices: string[]; about: string };
type LiveAnswer = {
  document: Film;
  actions: string[];
  choices: string[];
  next: string | null;
  error?: string;
};

// Written into the script when it is put together.
declare const STYLE: string;
