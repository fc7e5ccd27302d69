// node client.mjs URL COUNT: so many requests at once, each on a connection of its own; waits for ever.
import http from "node:http";

const [url, count] = process.argv.slice(2);
const body = JSON.stringify({ model: "tiny", stream: true, max_tokens: 8, messages: [{ role: "user", content: "hi" }] });
let sent = 0;
for (let i = 0; i < Number(count); i++) {
  const headers = { "content-type": "application/json", "content-length": body.length, "x-request-id": `node-${i}` };
  const request = http.request(url, { method: "POST", headers, agent: false }, (answer) => answer.resume());
  request.on("error", () => {});
  request.end(body, () => ++sent === Number(count) && console.log("asked"));
}
