"""usage: langchain_agent.py start|resume PROMPT; an agent of LangChain, streamed, with its history in a file."""

import asyncio
import json
import os
import signal
import sys

from langchain.agents import create_agent
from langchain_core.messages import AIMessageChunk, messages_from_dict, messages_to_dict
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

import shell_tools


async def main(how: str, prompt: str) -> None:
    model = ChatOpenAI(model=os.environ["MODEL"], base_url=os.environ["BASE_URL"] + "/v1", api_key="none", max_retries=0, stream_usage=True)
    agent = create_agent(model, [tool(f) for f in (shell_tools.run_command, shell_tools.read_file, shell_tools.edit_file)])
    history = os.path.join(os.environ["HOME"], "history.json")
    messages = []
    if how == "resume" and os.path.exists(history):
        with open(history) as f:
            messages = messages_from_dict(json.load(f))
    state = {}
    async for mode, part in agent.astream({"messages": [*messages, ("user", prompt)]}, stream_mode=["messages", "values"]):
        if mode == "values":
            state = part
        elif isinstance(part[0], AIMessageChunk):
            print(part[0].text, end="", flush=True)
    with open(history, "w") as f:
        json.dump(messages_to_dict(state["messages"]), f)
    print("\nfinished:", state["messages"][-1].text)


signal.signal(signal.SIGINT, signal.SIG_DFL)  # when it is cancelled, LangGraph reads the answer to its end
asyncio.run(main(sys.argv[1], sys.argv[2]))
