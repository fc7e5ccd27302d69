// `node node_client.js PORT N`: N requests over one keep-alive connection, then one to /hang; prints a line, waits.
const http = require("http");
const [port, count] = process.argv.slice(2).map(Number);
const agent = new http.Agent({ keepAlive: true, maxSockets: 1 });
const call = (path, method, done) => {
  const request = http.request({ port, host: "127.0.0.1", path, method, agent, headers: { "X-Request-Id": `node-${path}` } }, (answer) => {
    answer.resume();
    answer.on("end", done);
  });
  request.end(method === "POST" ? "{}" : undefined, () => path === "/hang" && console.log("ready"));
};
const next = (left) => (left ? call("/chunked", "GET", () => next(left - 1)) : call("/hang", "POST", () => {}));
next(count);
