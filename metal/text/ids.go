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
		for name, shorten := range map[string]func(json.RawMessage) (json.RawMessage, error){"tool_call_id": shortenID, "tool_calls": shortenCalls} {
			if raw, ok := members[name]; ok {
				short, err := shorten(raw)
				if err != nil {
					return nil, fmt.Errorf("%w: message %d, %s: %w", chat.ErrMessages, i, name, err)
				}
				members[name] = short
			}
		}
		var err error
		if out[i].Extra, err = json.Marshal(members); err != nil {
			return nil, fmt.Errorf("%w: message %d: %w", chat.ErrMessages, i, err)
		}
	}
	return out, nil
}

func shortenCalls(raw json.RawMessage) (json.RawMessage, error) {
	type call struct {
		ID       json.RawMessage `json:"id"`
		Type     string          `json:"type"`
		Function json.RawMessage `json:"function"`
	}
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
	return json.Marshal(calls)
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
	return json.Marshal(id)
}
