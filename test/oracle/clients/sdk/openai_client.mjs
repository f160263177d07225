// What the official JavaScript client of the OpenAI API sees. Started by test/oracle/clients; BASE_URL says where the server is.
import OpenAI from "openai";
import { zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";
import { events, page, plain, play, whole } from "./lines.mjs";

const client = new OpenAI({ baseURL: process.env.BASE_URL, apiKey: "none", maxRetries: 0, timeout: 120_000 });

const City = z.object({ name: z.enum(["Paris", "Berlin"]), large: z.boolean() });

async function cancelled(args) {
  const seen = [];
  let result;
  for await (const event of await client.responses.create({ ...args, stream: true })) {
    seen.push(plain(event));
    if (!result && event.type === "response.output_text.delta") {
      result = plain(await client.responses.cancel(seen[0].response.id));
    }
  }
  return { events: seen, result };
}

// With parse the client adds what it parsed to the response.
const formed = (a) => ({ ...a, text: { format: zodTextFormat(City, "city") } });
const parsed = (r) => ({ result: { ...plain(r), parsed: plain(r.output_parsed) } });

const calls = {
  "chat.create": (a) => whole(client.chat.completions.create(a)),
  "chat.stream": (a) => events(client.chat.completions.create({ ...a, stream: true })),
  "chat.helper": async (a) => ({ result: plain(await client.chat.completions.stream(a).finalChatCompletion()) }),
  "chat.parse": async (a) => ({ result: plain(await client.chat.completions.parse({ ...a, response_format: zodResponseFormat(City, "city") })) }),
  "completions.create": (a) => whole(client.completions.create(a)),
  "completions.stream": (a) => events(client.completions.create({ ...a, stream: true })),
  "embeddings.create": (a) => whole(client.embeddings.create(a)),
  "models.list": () => page(client.models.list()),
  "models.get": ({ model }) => whole(client.models.retrieve(model)),
  post: async ({ path, body }) => ({ result: plain(await client.post(path, { body })) }),
  "responses.create": (a) => whole(client.responses.create(a)),
  "responses.stream": (a) => events(client.responses.create({ ...a, stream: true })),
  "responses.helper": async (a) => ({ result: plain(await client.responses.stream(a).finalResponse()) }),
  "responses.parse": async (a) => parsed(await client.responses.parse(formed(a))),
  "responses.parse_stream": async (a) => parsed(await client.responses.stream(formed(a)).finalResponse()),
  "responses.input_tokens": (a) => whole(client.responses.inputTokens.count(a)),
  "responses.get": ({ id }) => whole(client.responses.retrieve(id)),
  "responses.delete": async ({ id }) => ({ result: await (await client.responses.delete(id).asResponse()).json() }),
  "responses.cancel": ({ id }) => whole(client.responses.cancel(id)),
  "responses.cancelled": cancelled,
  "responses.items": ({ id, ...a }) => page(client.responses.inputItems.list(id, a)),
};

await play(client, calls, (e) => {
  if (!(e instanceof OpenAI.OpenAIError)) return undefined;
  const message = e.error?.message ?? e.message;
  return { class: e.constructor.name, status: e.status, message, code: e.code, param: e.param, type: e.type, request_id: e.requestID };
});
