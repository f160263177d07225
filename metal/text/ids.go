package text

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"

	"metalfleet.dev/metalfleet/metal/chat"
)

// shortID is what Mistral's templates take for the id of a call.
var shortID = regexp.MustCompile(`^[A-Za-z0-9]{9}$`)

// shortIDs gives calls of tools, and their results, ids that Mistral's templates
// take: clients have others, and send them back.
func shortIDs(messages []chat.Message) ([]chat.Message, error) {
	return rewritten(messages, rewriter{id: shortenID, calls: shortenCalls})
}

// rewriter changes the id of a result and the calls of a turn; nil changes nothing.
type rewriter struct {
	id, calls func(json.RawMessage) (json.RawMessage, error)
}

// rewritten are messages with calls of tools, and their results, as a template takes them.
func rewritten(messages []chat.Message, with rewriter) ([]chat.Message, error) {
	out := make([]chat.Message, len(messages))
	for i, m := range messages {
		out[i] = m
		if len(m.Extra) == 0 {
			continue
		}
		var members map[string]json.RawMessage
		if json.Unmarshal(m.Extra, &members) != nil {
			return nil, fmt.Errorf("%w: the members of message %d are not an object", chat.ErrMessages, i)
		}
		for name, rewrite := range map[string]func(json.RawMessage) (json.RawMessage, error){"tool_call_id": with.id, "tool_calls": with.calls} {
			if raw, ok := members[name]; ok && rewrite != nil {
				other, err := rewrite(raw)
				if err != nil {
					return nil, fmt.Errorf("%w: message %d, %s: %w", chat.ErrMessages, i, name, err)
				}
				members[name] = other
			}
		}
		out[i].Extra = sorted(members)
	}
	return out, nil
}

// call is a call of a tool in a message.
type call struct {
	ID       json.RawMessage `json:"id"`
	Type     string          `json:"type"`
	Function json.RawMessage `json:"function"`
}

// argumentsAsText writes the arguments of calls as JSON text, which the templates of DeepSeek
// join to other text.
var argumentsAsText = rewriter{calls: func(raw json.RawMessage) (json.RawMessage, error) {
	var calls []call
	if json.Unmarshal(raw, &calls) != nil {
		return nil, errCalls
	}
	for i := range calls {
		var function struct {
			Name      string          `json:"name"`
			Arguments json.RawMessage `json:"arguments"`
		}
		if json.Unmarshal(calls[i].Function, &function) != nil {
			return nil, errCalls
		}
		if len(function.Arguments) > 0 && function.Arguments[0] != '"' {
			function.Arguments = quoted(string(function.Arguments))
		}
		calls[i].Function = object(member{"name", quoted(function.Name)}, member{"arguments", function.Arguments})
	}
	return list(calls), nil
}}

var errCalls = errors.New("want a list of calls, each with an id and a function")

// numberedIDs gives calls the ids that Kimi K2 writes, functions.NAME:N, since its template
// shows ids in place of names. N counts the calls of a conversation.
func numberedIDs(messages []chat.Message) ([]chat.Message, error) {
	n, ids := 0, map[string]string{}
	id := func(raw json.RawMessage) (json.RawMessage, error) {
		var old string
		if json.Unmarshal(raw, &old) != nil {
			return nil, errors.New("want a string as id")
		}
		if other, ok := ids[old]; ok {
			old = other
		}
		return quoted(old), nil
	}
	return rewritten(messages, rewriter{id: id, calls: func(raw json.RawMessage) (json.RawMessage, error) {
		var calls []call
		if json.Unmarshal(raw, &calls) != nil {
			return nil, errCalls
		}
		for i, c := range calls {
			var old string
			var function struct {
				Name string `json:"name"`
			}
			if json.Unmarshal(c.ID, &old) != nil || json.Unmarshal(c.Function, &function) != nil {
				return nil, errCalls
			}
			ids[old] = fmt.Sprintf("functions.%s:%d", function.Name, n)
			n++
			var err error
			if calls[i].ID, err = id(c.ID); err != nil {
				return nil, err
			}
		}
		return list(calls), nil
	}})
}

func shortenCalls(raw json.RawMessage) (json.RawMessage, error) {
	var calls []call
	if json.Unmarshal(raw, &calls) != nil {
		return nil, errors.New("want a list of calls, each with an id")
	}
	for i := range calls {
		var err error
		if calls[i].ID, err = shortenID(calls[i].ID); err != nil {
			return nil, err
		}
	}
	return list(calls), nil
}

// shortenID is the same for the same id.
func shortenID(raw json.RawMessage) (json.RawMessage, error) {
	var id string
	if json.Unmarshal(raw, &id) != nil {
		return nil, errors.New("want a string as id")
	}
	if !shortID.MatchString(id) {
		sum := sha256.Sum256([]byte(id))
		id = base32.StdEncoding.EncodeToString(sum[:])[:9]
	}
	return quoted(id), nil
}
