// Runs Perfetto's own trace_processor (WebAssembly, with the page that loads it) outside a browser: node FILE ENGINE.
// Speaks its RPC (TraceProcessorRpcStream) on standard input and output.
"use strict";
const fs = require("fs");
const path = require("path");
const vm = require("vm");

const engine = process.argv[2];
// Standard output is for answers.
console.log = console.warn = console.error;

// What the loader looks for in a browser's worker.
const node = process;
global.self = global;
global.importScripts = () => {};
global.WorkerGlobalScope = function () {};
global.location = { href: engine };
global.fetch = undefined;
global.XMLHttpRequest = class {
  open(_method, url) {
    const bytes = fs.readFileSync(path.join(path.dirname(engine), path.basename(url)));
    this.status = 200;
    this.response = bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length);
  }
  send() {}
};
global.process = undefined;
vm.runInThisContext(fs.readFileSync(engine, "utf8"));
global.process = node;

// The loader compiles at once and says that it is ready in a microtask: both have happened when a timer fires.
setTimeout(() => {
  const port = { postMessage: (reply) => fs.writeSync(1, reply) };
  self.onmessage({ data: port });
  node.stdin.on("data", (bytes) => port.onmessage({ data: new Uint8Array(bytes) }));
}, 0);
