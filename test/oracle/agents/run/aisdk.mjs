// usage: aisdk.mjs start|resume PROMPT; PACKAGE is the provider's
import { execFile } from 'node:child_process'
import { existsSync, readFileSync, writeFileSync } from 'node:fs'
import { isStepCount, jsonSchema, streamText, tool } from 'ai'
import { createAnthropic } from '@ai-sdk/anthropic'
import { createOpenAI } from '@ai-sdk/openai'
import { createOpenAICompatible } from '@ai-sdk/openai-compatible'

const { BASE_URL, HOME, MODEL, PACKAGE } = process.env
const [, , how, prompt] = process.argv
const options = { name: 'metalfleet', baseURL: `${BASE_URL}/v1`, apiKey: 'none', includeUsage: true }
const create = { '@ai-sdk/anthropic': createAnthropic, '@ai-sdk/openai': createOpenAI, '@ai-sdk/openai-compatible': createOpenAICompatible }[PACKAGE]

const strings = (...names) => jsonSchema({
  type: 'object', properties: Object.fromEntries(names.map((n) => [n, { type: 'string' }])), required: names, additionalProperties: false,
})
const tools = {
  run_command: tool({
    description: 'Run a shell command and return what it prints.', inputSchema: strings('command'),
    execute: ({ command }) => new Promise((done) => execFile('sh', ['-c', command], (_, out, err) => done(out + err))),
  }),
  read_file: tool({ description: 'Read a file.', inputSchema: strings('path'), execute: ({ path }) => readFileSync(path, 'utf8') }),
  edit_file: tool({
    description: 'Replace a text in a file.', inputSchema: strings('path', 'old_string', 'new_string'),
    execute: ({ path, old_string, new_string }) => {
      writeFileSync(path, readFileSync(path, 'utf8').replace(old_string, () => new_string))
      return 'done'
    },
  }),
}

const history = `${HOME}/history.json`
const messages = how === 'resume' && existsSync(history) ? JSON.parse(readFileSync(history, 'utf8')) : []
messages.push({ role: 'user', content: prompt })
const stop = new AbortController()
process.on('SIGINT', () => stop.abort())
const result = streamText({
  model: create(options)(MODEL), tools, messages, stopWhen: isStepCount(20), abortSignal: stop.signal, maxRetries: 0, maxOutputTokens: 50_000,
  onError: ({ error }) => { throw error },
})
for await (const text of result.textStream) process.stdout.write(text)
if (stop.signal.aborted) process.exit(130)
messages.push(...await result.responseMessages)
writeFileSync(history, JSON.stringify(messages))
console.log('\nfinished:', await result.finishReason, JSON.stringify(await result.totalUsage))
