package agents

// Program is a coding agent, or a small one written with a library.
type Program struct {
	Name string
	// Env is the folder of what is installed: js, or the name of a file in pins.
	Env string
	// Script in run starts it.
	Script string
	// Variables are further variables of the script.
	Variables []string
	// Model that it asks, and Path of the API by which it does.
	Model, Path string
	// Calls are the tools that it calls while it fixes the test, in order; none where
	// the program applies edits from the text of an answer.
	Calls []string
	// Ignored are the request fields that do not matter here.
	Ignored []string
}

// programs are those that are played; docs/how-to/serve.md shows users how to
// configure each.
func programs() []Program {
	const chat, responses, messages = "/v1/chat/completions", "/v1/responses", "/v1/messages"
	library, opencode := []string{"run_command", "read_file", "edit_file", "run_command"}, []string{"bash", "read", "edit", "bash"}
	return []Program{
		{Name: "Codex", Env: "js", Script: "codex.sh", Model: hermes, Path: responses,
			Calls:   []string{"exec_command", "exec_command", "exec_command", "exec_command"},
			Ignored: []string{"client_metadata", "include", "reasoning.summary", "tools[web_search]"}},
		{Name: "OpenCode, chat", Env: "js", Script: "opencode.sh", Variables: []string{"PACKAGE=@ai-sdk/openai-compatible"}, Model: xml, Path: chat, Calls: opencode},
		{Name: "OpenCode, responses", Env: "js", Script: "opencode.sh", Variables: []string{"PACKAGE=@ai-sdk/openai"}, Model: hermes, Path: responses, Calls: opencode},
		{Name: "aider", Env: "aider", Script: "aider.sh", Model: hermes, Path: chat},
		{Name: "Claude Code", Env: "js", Script: "claude.sh", Model: xml, Path: messages,
			Calls: []string{"Bash", "Read", "Edit", "Bash"},
			Ignored: []string{"context_management", "messages[].content[].cache_control", "metadata", "system[].cache_control",
				"system[x-anthropic-billing-header]", "thinking.display", "tools[].defer_loading"}},
		{Name: "AI SDK, chat", Env: "js", Script: "aisdk.mjs", Variables: []string{"PACKAGE=@ai-sdk/openai-compatible"}, Model: hermes, Path: chat, Calls: library},
		{Name: "AI SDK, responses", Env: "js", Script: "aisdk.mjs", Variables: []string{"PACKAGE=@ai-sdk/openai"}, Model: xml, Path: responses, Calls: library},
		{Name: "AI SDK, messages", Env: "js", Script: "aisdk.mjs", Variables: []string{"PACKAGE=@ai-sdk/anthropic"}, Model: hermes, Path: messages, Calls: library,
			Ignored: []string{"tools[].eager_input_streaming"}},
		{Name: "OpenAI Agents SDK", Env: "sdks", Script: "agents_sdk.py", Model: hermes, Path: responses, Calls: library},
		{Name: "LangChain", Env: "sdks", Script: "langchain_agent.py", Model: xml, Path: chat, Calls: library},
	}
}
