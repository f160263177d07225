package serve

import (
	"encoding/json"
	"fmt"

	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/metal/wire"
)

// toggles are the variables by which chat templates switch reasoning on and off.
// A template reads one of them, or none.
var toggles = []string{"enable_thinking", "thinking"}

// reason passes a request's reasoning settings to the chat template. Variables
// that the client sets itself take precedence.
func reason(chat *wire.Chat, r *openai.Reasoning) error {
	chat.ReasoningEffort = r.Effort
	if r.Thinking == nil {
		chat.TemplateArgumentsJson = string(r.TemplateArguments)
		return nil
	}
	if !*r.Thinking && r.Effort == "" {
		chat.ReasoningEffort = openai.EffortNone // for templates that only grade it
	}
	return toggle(chat, *r.Thinking, r.TemplateArguments)
}

// toggle switches reasoning on or off, unless the client's own variables do.
func toggle(chat *wire.Chat, on bool, own json.RawMessage) error {
	all := map[string]json.RawMessage{}
	for _, name := range toggles {
		all[name] = json.RawMessage(fmt.Sprint(on))
	}
	if own != nil {
		if err := json.Unmarshal(own, &all); err != nil {
			return fmt.Errorf("decode template arguments: %w", err)
		}
	}
	raw, err := openai.Marshal(all) // package json would write each <, > and & as six bytes
	chat.TemplateArgumentsJson = string(raw)
	return err
}
