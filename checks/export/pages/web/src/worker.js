// Runs Python, in a worker: the parts of the runtime come with the first message, so that nothing
// is fetched from anywhere.

self.addEventListener("message", async ({ data }) => {
  if (data.kind === "start") {
    await start(data.parts);
    return;
  }
  const answer = data.kind === "open" ? self.live.open(data.text) : self.offer(data.text);
  self.postMessage({ id: data.id, answer });
});

async function start(parts) {
  try {
    const files = {
      "pyodide.asm.wasm": () => response(parts.wasm, "application/wasm"),
      "python_stdlib.zip": () => response(parts.stdlib, "application/zip"),
    };
    // A page on a disk can have no other worker than a classic one, which the interpreter refuses
    // when it sees this function; modules are imported here all the same.
    self.importScripts = undefined;
    self.fetch = async (address) => files[String(address).split("/").pop()]();
    say("starting the interpreter");
    const { loadPyodide } = await import(moduleOf(await textOf(parts.pyodide)));
    const { default: createPyodideModule } = await import(moduleOf(await textOf(parts.asm)));
    const python = await loadPyodide({
      createPyodideModule,
      indexURL: "https://nowhere.invalid/",
      lockFileContents: JSON.parse(parts.lock),
      packageBaseUrl: "https://nowhere.invalid/",
      checkAPIVersion: false,
    });
    say("unpacking the reference");
    const sources = new Uint8Array(await new Response(bytesOf(parts.sources)).arrayBuffer());
    python.unpackArchive(sources, "zip", { extractDir: "/lockstep" });
    say("importing the rules");
    const policies = python.runPython(`
import sys
sys.path.insert(0, "/lockstep")
from ${parts.module} import Live, offer, policies
live = Live()
policies()`);
    self.live = python.globals.get("live");
    self.offer = python.globals.get("offer");
    self.postMessage({ kind: "ready", policies });
  } catch (error) {
    self.postMessage({ kind: "failed", what: String(error) });
  }
}

/** @param {string} what is done next, for the reader */
function say(what) {
  self.postMessage({ kind: "stage", what });
}

/** @param {string} text base64 of gzip */
function response(text, type) {
  const whole = new Blob([bytesOf(text)]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(whole, { headers: { "content-type": type } });
}

function textOf(text) {
  return response(text, "text/plain").text();
}

function moduleOf(source) {
  return URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
}

function bytesOf(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
}
