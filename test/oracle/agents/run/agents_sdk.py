"""usage: agents_sdk.py start|resume PROMPT; an agent of the OpenAI Agents SDK, streamed, with a session in a file."""

import asyncio
import os
import sys

from agents import Agent, Runner, SQLiteSession, function_tool, set_default_openai_client, set_tracing_disabled
from openai import AsyncOpenAI

import shell_tools


async def main(prompt: str) -> None:
    set_tracing_disabled(True)
    set_default_openai_client(AsyncOpenAI(base_url=os.environ["BASE_URL"] + "/v1", api_key="none", max_retries=0), use_for_tracing=False)
    tools = [function_tool(f) for f in (shell_tools.run_command, shell_tools.read_file, shell_tools.edit_file)]
    agent = Agent(name="fixer", instructions="You fix programs.", model=os.environ["MODEL"], tools=tools)
    session = SQLiteSession("session", os.path.join(os.environ["HOME"], "session.db"))
    result = Runner.run_streamed(agent, prompt, session=session, max_turns=20)
    async for event in result.stream_events():
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
            print(event.data.delta, end="", flush=True)
    print("\nfinished:", result.final_output, result.context_wrapper.usage.total_tokens)


asyncio.run(main(sys.argv[2]))
