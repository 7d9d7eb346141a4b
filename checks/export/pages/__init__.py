"""Pictures of scheduler runs in a page: in the book, in `lockstep view`, and live.

Python computes a *document*, JavaScript draws it. The document is JSON, described here and made by
`checks.export.pages.document`. Neither the document nor the script depends on the policy: a policy
describes the drawing of its states in its `Picture` (`checks.export.pages.picture`).

## A document

- `format` "lockstep-steps", `version` 1, `title`, `about` (a sentence or two, may be empty),
  `policy`, `config` (every key), `requests` (each as in a workload file, with `prompt_len` always),
  `owners` (the request of each row that is not called as its request, absent if there is none);
- `rules`: of each rule that applies or is named anywhere in the document, by id, `says`, `source`,
  `kind`;
- `sides`: names of what is compared, one ("reference") or two ("reference", "sendnn 2.6.3");
- `frames`: for each step a list with a situation for each side, null where a side has none. Where
  they are many, `packed` instead: `size` frames in each of its `chunks`, each the base64 of the
  gzip of the JSON of these frames;
- `overview`, of all frames: `count`; `labels`, where they are not "step 0", "step 1", …; `kinds`, a
  letter for each, its kind's first; `measures`, what is drawn above the scrubber: `name`, `unit`,
  `limit` (or null), `values` by frame; `refused`, rule by frame; `broken`, rules by frame;
  `events`, the frames to which the keys n and p jump;
- `violation`, null or `frame`, `rule` (the one that is broken; "crash" where the system raised,
  empty where no rule breaks), `says`, `found`, and `loop`, the frame with which the part that
  repeats begins;
- `divergence`, null or `frame` and `fields`: of each field that differs `field`, `place`,
  `expected`, `found`.

## A situation

What one side shows after a step, all lengths in tokens:

- `step`, `time`, `kind` ("prefill", "decode", "idle", or "between" where nothing but arrivals and
  aborts happened), `label` ("step 5"), `headline` (in words);
- `arrived` and `aborted` since the step before, `finished` in it: ids;
- `meters`: each `name`, `value`, `limit` or null, `unit`, `parts` (pairs of a name, mostly a
  request's, and its share; may be empty), `over` (true: more than the limit);
- `rows`: each `id`, `place` ("decoding"), `cells`, `numbers`, `note`. `numbers` by name, a value,
  or a pair of what it was and what it is where the step changed it. `cells`: runs of blocks of one
  kind, each `kind`, `blocks` (their numbers, written "3,7-9"; empty: `count` of them without a
  number), `tokens` (in them, filled from the left; absent: full), `now` (true: read or written by
  what this step computed). The kinds: `own`, `shared` (held by several requests), `cached` (reused,
  not computed), `padding` (the dummy block, read), `dummy` (the dummy block, written instead of a
  cached one), `pending` (not handed out yet), `reserved` (promised), `freed` (held in the step,
  free after it), `cpu` (on the CPU);
- `queues`: each `name` and `requests`: `id`, `note`;
- `pools`: each `name`, `size`, `count` (of the free), `free` (the first 64, in the order in which
  they are handed out, "3,7-9"), `reserved` (how many are promised); of up to 1,024 blocks also
  `held` and `cached` (of the free those with content), likewise, and `shared` (pairs of a block and
  how many hold it, where more than one);
- `refused`: null, or `rule`, and `id`: the request that it kept waiting, null where that is all;
- `events`: each `transition`, `id`, `rule`, `before`, `after`;
- `broken`: pairs of a rule and what was found; `speaks`: rules whose witness this step is;
  `unjudged`: rules that ask for what the side does not report.

Every rule in `rules` that is none of these was judged and holds, but for those of kind
"eventually", which are about whole runs.

## In a page

One classic script, `lockstep.js`, from `checks.export.pages.assets.write_assets(directory)`; its
style is inside, its colours follow the `color-scheme` of the place where it stands (Material for
MkDocs sets it). All of it works under any path and from file://.

    <script src="assets/lockstep.js" defer></script>

    <lockstep-steps name="vol" at="5">
      <script type="application/json">{a document}</script>
    </lockstep-steps>
    <lockstep-steps name="vol" src="steps/documented.js"></lockstep-steps>

`src` is a script that `assets.as_script(document)` wrote: unlike JSON it also loads from file://.
`at`: the frame shown first, by default 0. `name`: the key under which the frame stands in the
fragment of the URL (`#vol=5`), by default "step". `parts`: which of `chart picture rules events
requests` are shown, by default all; `still` (no value): the frame `at` alone, without scrubber.
`rule-link`: where each rule has a page, with {id} for its id: names of rules are links then.
`heading`: the title is shown, too. `keys="page"`: keys work anywhere on the page.

    <lockstep-live name="live" runtime="assets/runtime/">
      <script type="application/json">{"policy": "spyre", "config": {…}, "requests": […]}</script>
    </lockstep-live>

runs the reference in the reader's browser. The JSON is a *live situation*: `policy`, `config` (keys
that are not as by default), `requests` (lines of a workload), optional `external` as in a trace's
header, `actions` (labels of what happened, as the explorer writes them into a counterexample:
"arrive 0", "step", "step, 0 ends", "abort 1"; absent: as the requests say), `at` (the frame shown
first, absent: the last of the given actions) and `title`. `runtime` is the folder that
`runtime.write_runtime(directory)` filled (`npm ci`, about 9 MB). `name`, by default "live", `parts`
and `rule-link` as above; `editor`: requests and configuration can be seen at once; `fixed`: no
other instance can be chosen. The whole situation is in the URL: `#live=` and its JSON,
deflated, `markup.live_fragment(situation)`; JSON as it is can be read, too. The header of a
counterexample is a situation.

`markup.steps_element(document, …)` and `markup.live_element(situation, …)` write the elements,
`document_of_steps` of `checks.harness.views.showing` and `document_of_file` of
`checks.harness.views.viewing` make documents, `checks.harness.views.live` is what runs in the
browser.
"""
