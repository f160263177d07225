# An agent with a tool: the framework sends it, runs what the model calls, and sends the result.
import asyncio
import os

from pydantic_ai import Agent
from pydantic_ai.messages import ModelRequest, ModelResponse
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

model = OpenAIChatModel("caller", provider=OpenAIProvider(base_url=os.environ["BASE_URL"], api_key="none"))
agent = Agent(model, instructions="Answer about the weather.")
ran = []


@agent.tool_plain
def get_weather(city: str) -> str:
    """How the weather is in a city."""
    ran.append(city)
    return "sunny, 21 degrees"


def parts(messages):
    for m in messages:
        who = "asked" if isinstance(m, ModelRequest) else "answered"
        for p in m.parts:
            print(who, p.part_kind, getattr(p, "tool_name", ""), p.args_as_dict() if p.part_kind == "tool-call" else p.content)


print("== an agent calls its tool")
result = agent.run_sync("How is the weather in Paris?")
parts(result.all_messages())
print("the tool ran for", ran)

print("== its requests")
usage = result.usage
usage = usage() if callable(usage) else usage
print(usage.requests, "requests,", usage.tool_calls, "call")


async def streamed():
    async with agent.run_stream("How is the weather in Paris?") as run:
        return "".join([piece async for piece in run.stream_text(delta=True, debounce_by=None)])


print("== streamed")
print(asyncio.run(streamed()))

print("== the next turn")
print(agent.run_sync("And now?", message_history=result.all_messages()).output)

print("== an agent without tools")
print(Agent(model).run_sync("Hello").output)
