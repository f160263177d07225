package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"metalfleet.dev/metalfleet/metal/chat"
	"metalfleet.dev/metalfleet/metal/tokenizer"
)

// Chat is a conversation to be continued.
type Chat struct {
	Messages []chat.Message
	// Arguments is a JSON object handed to the template; empty means none.
	Arguments json.RawMessage
	// Tools is a JSON array of tool definitions; empty means none.
	Tools json.RawMessage
}

func (c Chat) size() int {
	n := len(c.Arguments) + len(c.Tools)
	for _, m := range c.Messages {
		n += len(m.Role) + len(m.Content) + len(m.Name) + len(m.Extra)
	}
	return n
}

// template is the model's chat template with what it is always given; t is nil
// where the model has none.
type template struct {
	t        *chat.Template
	bos, eos string
}

var errNoTemplate = errors.New("the model has no chat template; send a prompt instead")

func parseTemplate(ctx context.Context, metadata map[string]any, tok *tokenizer.Tokenizer) (*template, error) {
	out := &template{bos: text(tok, tok.Special().BOS), eos: text(tok, tok.Special().EOS)}
	source, ok := metadata["tokenizer.chat_template"]
	if !ok {
		return out, nil
	}
	s, ok := source.(string)
	if !ok {
		return nil, fmt.Errorf("%w: tokenizer.chat_template is not a string", chat.ErrTemplate)
	}
	var err error
	if out.t, err = chat.Parse(s); err != nil {
		return nil, err
	}
	return out, out.t.Check(ctx, out.options())
}

func text(tok *tokenizer.Tokenizer, id int32) string {
	if id == tokenizer.None {
		return ""
	}
	return string(tok.Bytes(id))
}

func (t *template) options() chat.Options {
	return chat.Options{AddGenerationPrompt: true, BOS: t.bos, EOS: t.eos, Now: time.Now()}
}

func (t *template) render(ctx context.Context, c Chat) (string, error) {
	if t.t == nil {
		return "", errNoTemplate
	}
	o := t.options()
	o.Tools, o.Arguments = c.Tools, c.Arguments
	return t.t.Render(ctx, c.Messages, o)
}
