// What the official JavaScript client of the Anthropic API sees. Started by test/oracle/clients; BASE_URL says where the server is.
import Anthropic from "@anthropic-ai/sdk";
import { events, page, plain, play, whole } from "./lines.mjs";

const client = new Anthropic({ baseURL: process.env.BASE_URL, apiKey: "none", maxRetries: 0, timeout: 120_000 });

async function helper(args) {
  const stream = client.messages.stream(args);
  let text = "";
  stream.on("text", (piece) => (text += piece));
  return { result: plain(await stream.finalMessage()), text };
}

const calls = {
  "messages.create": (a) => whole(client.messages.create(a)),
  "messages.stream": (a) => events(client.messages.create({ ...a, stream: true })),
  "messages.helper": helper,
  "messages.count": (a) => whole(client.messages.countTokens(a)),
  "models.list": (a) => page(client.models.list(a)),
  "models.get": (a) => whole(client.models.retrieve(a.model_id)),
};

await play(client, calls, (e) => {
  if (!(e instanceof Anthropic.AnthropicError)) return undefined;
  const { type, message } = e.error?.error ?? {};
  const code = e.headers?.get("x-metalfleet-error-code");
  return { class: e.constructor.name, status: e.status, message: message ?? e.message, type, code, request_id: e.requestID };
});
