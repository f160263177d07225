// A call for each line on the standard input, a reply for each on the standard output, for a client in JavaScript.
import readline from "node:readline";

// plain is what came, with the client's own getters and methods left out.
export const plain = (value) => JSON.parse(JSON.stringify(value ?? null));

// whole is the reply of a request with one answer.
export async function whole(promise) {
  const { data, response, request_id } = await promise.withResponse();
  return { result: plain(data), headers: Object.fromEntries(response.headers), request_id };
}

// events is the reply of a request with a stream.
export async function events(promise) {
  const { data, response, request_id } = await promise.withResponse();
  const seen = [];
  for await (const event of data) seen.push(plain(event));
  return { events: seen, headers: Object.fromEntries(response.headers), request_id };
}

// page is the reply of a request with a list.
export async function page(promise) {
  const data = [];
  for await (const one of promise) data.push(plain(one));
  return { result: { data } };
}

// play answers every line, by the calls that there are; failure makes an error of the client's a reply.
export async function play(client, calls, failure) {
  for await (const line of readline.createInterface({ input: process.stdin, crlfDelay: Infinity })) {
    const { call, key, args, extra } = JSON.parse(line);
    let reply;
    client.apiKey = key || "none";
    try {
      if (!calls[call]) throw new Error(`there is no call ${call}`);
      reply = await calls[call]({ ...args, ...extra });
    } catch (e) {
      reply = { error: failure(e) ?? { class: e.constructor.name, message: `runner: ${e.stack}` } };
    }
    process.stdout.write(JSON.stringify(reply) + "\n");
  }
}
