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
	id, calls func(view) (value, error)
}

// rewritten are messages with calls of tools, and their results, as a template takes them.
func rewritten(messages []chat.Message, with rewriter) ([]chat.Message, error) {
	out := make([]chat.Message, len(messages))
	for i, m := range messages {
		out[i] = m
		if len(m.Extra) == 0 {
			continue
		}
		var members map[string]view
		if json.Unmarshal(m.Extra, &members) != nil {
			return nil, fmt.Errorf("%w: the members of message %d are not an object", chat.ErrMessages, i)
		}
		all := values(members)
		for name, rewrite := range map[string]func(view) (value, error){"tool_call_id": with.id, "tool_calls": with.calls} {
			if raw, ok := members[name]; ok && rewrite != nil {
				other, err := rewrite(raw)
				if err != nil {
					return nil, fmt.Errorf("%w: message %d, %s: %w", chat.ErrMessages, i, name, err)
				}
				all[name] = other
			}
		}
		out[i].Extra = write(sorted(all))
	}
	return out, nil
}

// call is a call of a tool in a message.
type call struct {
	ID       view   `json:"id"`
	Type     string `json:"type"`
	Function view   `json:"function"`
	// id and function are what is written.
	id, function value
}

var errCalls = errors.New("want a list of calls, each with an id and a function")

// readCalls reads calls, each to be written as it stands.
func readCalls(raw view) (calls []call, err error) {
	if json.Unmarshal(raw, &calls) != nil {
		return nil, errCalls
	}
	for i := range calls {
		calls[i].id, calls[i].function = as(calls[i].ID), as(calls[i].Function)
	}
	return calls, nil
}

// argumentsAsText writes the arguments of calls as JSON text, which the templates of DeepSeek
// join to other text.
var argumentsAsText = rewriter{calls: func(raw view) (value, error) {
	calls, err := readCalls(raw)
	if err != nil {
		return nil, err
	}
	for i := range calls {
		var function struct {
			Name      string `json:"name"`
			Arguments view   `json:"arguments"`
		}
		if json.Unmarshal(calls[i].Function, &function) != nil {
			return nil, errCalls
		}
		arguments := as(function.Arguments)
		if len(function.Arguments) > 0 && function.Arguments[0] != '"' {
			arguments = quoted(function.Arguments)
		}
		calls[i].function = object(member{"name", quoted(function.Name)}, member{"arguments", arguments})
	}
	return list(calls), nil
}}

// numberedIDs gives calls the ids that Kimi K2 writes, functions.NAME:N, since its template
// shows ids in place of names. N counts the calls of a conversation.
func numberedIDs(messages []chat.Message) ([]chat.Message, error) {
	n, ids := 0, map[string]string{}
	id := func(raw view) (value, error) {
		var old string
		if json.Unmarshal(raw, &old) != nil {
			return nil, errors.New("want a string as id")
		}
		if other, ok := ids[old]; ok {
			old = other
		}
		return quoted(old), nil
	}
	return rewritten(messages, rewriter{id: id, calls: func(raw view) (value, error) {
		calls, err := readCalls(raw)
		if err != nil {
			return nil, err
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
			if calls[i].id, err = id(c.ID); err != nil {
				return nil, err
			}
		}
		return list(calls), nil
	}})
}

func shortenCalls(raw view) (value, error) {
	calls, err := readCalls(raw)
	if err != nil {
		return nil, err
	}
	for i := range calls {
		if calls[i].id, err = shortenID(calls[i].ID); err != nil {
			return nil, err
		}
	}
	return list(calls), nil
}

// shortenID is the same for the same id.
func shortenID(raw view) (value, error) {
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
