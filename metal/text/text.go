// Package text converts between text and tokens of a model: it opens the
// tokenizer and the chat templates of a GGUF file or a model folder.
//
// It refuses templates that cannot render a short conversation. A tokenizer may have more
// tokens than the model has rows, as those of Gemma 3 do; prompts cannot use these (Rows).
// The work is done by packages tokenizer and chat.
//
// Start reading at Open.
package text

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"metalfleet.dev/metalfleet/metal/chat"
	"metalfleet.dev/metalfleet/metal/tokenizer"
	"metalfleet.dev/metalfleet/metal/toolcall"
	"metalfleet.dev/metalfleet/metal/weights"
)

// errNoTemplate means that the model cannot continue conversations.
var errNoTemplate = errors.New("the model has no chat template; send a prompt instead")

// Text is the text side of one model. It does not change and may be used by
// many goroutines at once.
type Text struct {
	Tokenizer *tokenizer.Tokenizer
	templates *chat.Templates // nil where the model has none
	special   map[string]string
	calls     toolcall.Format
	// written is set if the template takes arguments of calls as JSON text, not as objects.
	written bool
	can     abilities
	rows    int
}

// Chat is a conversation to be continued.
type Chat struct {
	Messages []chat.Message
	// Arguments is a JSON object handed to the template; empty means none.
	Arguments json.RawMessage
	// Tools is a JSON array of tool definitions; empty means none.
	Tools json.RawMessage
	// Effort is how much the model should reason, from none to max. If the
	// template has no levels, it switches reasoning on or off if it can. Empty
	// means the template's default.
	Effort string
}

// Bytes is the size of all inputs.
func (c Chat) Bytes() int {
	n := len(c.Arguments) + len(c.Tools)
	for _, m := range c.Messages {
		n += len(m.Role) + len(m.Content) + len(m.Name) + len(m.Extra)
		for _, p := range m.Parts {
			n += len(p.Text)
		}
	}
	return n
}

// Values counts the values in the JSON of all inputs, about. Each takes far more memory for
// a template than its bytes.
func (c Chat) Values() int {
	n := chat.Values(c.Arguments) + chat.Values(c.Tools)
	for _, m := range c.Messages {
		n += chat.Values(m.Extra)
	}
	return n
}

// Open reads tokenizer and templates of a model, and renders a short
// conversation to see that they work.
func Open(ctx context.Context, f *weights.File) (*Text, error) { return OpenWith(ctx, f, "") }

// OpenWith is Open with a chat template that replaces those of the model; empty
// means its own. Errors of the template are chat.ErrTemplate.
func OpenWith(ctx context.Context, f *weights.File, template string) (*Text, error) {
	t, err := read(f, template == "")
	if err != nil {
		return nil, err
	}
	if template != "" {
		if t.templates, err = chat.NewTemplates(map[string]string{"default": template}); err != nil {
			return nil, err
		}
	}
	t.rows = min(t.Tokenizer.Size(), f.Dim.Vocabulary)
	if t.templates == nil {
		return t, nil
	}
	if err := t.templates.Check(ctx, t.options()); err != nil {
		return nil, err
	}
	if t.calls, t.written, err = toolcall.FormatOf(ctx, t.templates, t.options()); err != nil {
		return nil, err
	}
	t.can, err = t.probe(ctx)
	return t, err
}

// Rows is the number of tokens that the model can read and write. Tokens from there on are
// in the tokenizer alone.
func (t *Text) Rows() int { return t.rows }

// Calls returns the format in which the model writes tool calls.
func (t *Text) Calls() toolcall.Format { return t.calls }

// read returns tokenizer and special tokens of a model and, if they are wanted, its
// templates: broken ones do not matter where others replace them.
func read(f *weights.File, templates bool) (*Text, error) {
	if f.Folder() == nil {
		return fromGGUF(f.Metadata, f.Dim.Vocabulary, templates)
	}
	tok, err := tokenizer.FromModel(f.Folder(), f.Dim.Vocabulary)
	if err != nil {
		return nil, err
	}
	c, err := chat.ReadFolder(f.Folder())
	if errors.Is(err, chat.ErrTemplate) && !templates {
		err = nil
	}
	if err != nil {
		return nil, err
	}
	return &Text{Tokenizer: tok, templates: c.Templates, special: c.Special}, nil
}

func fromGGUF(metadata map[string]any, tokens int, templates bool) (*Text, error) {
	tok, err := tokenizer.FromModelMetadata(metadata, tokens)
	if err != nil {
		return nil, err
	}
	t := &Text{Tokenizer: tok, special: map[string]string{}}
	for name, id := range map[string]int32{"bos_token": tok.Special().BOS, "eos_token": tok.Special().EOS} {
		if id != tokenizer.None {
			t.special[name] = string(tok.Bytes(id))
		}
	}
	if !templates {
		return t, nil
	}
	c, err := chat.ReadGGUF(metadata)
	t.templates = c.Templates
	return t, err
}

func (t *Text) options() chat.Options {
	return chat.Options{AddGenerationPrompt: true, Special: t.special, Now: time.Now()}
}

// Render writes a conversation as the model was trained on it, with the
// assistant's turn open. Errors are errNoTemplate or those of chat.
func (t *Text) Render(ctx context.Context, c Chat) (string, error) {
	return t.RenderInTurn(ctx, c, 0, nil)
}

// RenderInTurn is Render, but calls wait once, before the template makes more than free
// bytes. An error of wait ends the render.
func (t *Text) RenderInTurn(ctx context.Context, c Chat, free int, wait func(context.Context) error) (string, error) {
	if t.templates == nil {
		return "", errNoTemplate
	}
	o := t.options()
	o.Tools, o.Arguments = c.Tools, c.Arguments
	o.Limits = chat.LimitsFor(c.Bytes())
	o.Limits.Free, o.Limits.Wait = free, wait
	if c.Effort != "" {
		err := chat.CheckValues(c.Messages, o) // before all arguments are read
		if err != nil {
			return "", err
		}
		if o.Arguments, err = t.can.withEffort(c.Arguments, c.Effort); err != nil {
			return "", err
		}
	}
	messages := t.arranged(c.Messages)
	err := chat.CheckValues(messages, o) // before calls are read to be rewritten
	if err != nil {
		return "", err
	}
	switch t.calls {
	case toolcall.Mistral, toolcall.MistralNamed:
		messages, err = shortIDs(messages)
	case toolcall.Kimi:
		messages, err = numberedIDs(messages)
	}
	if err == nil && t.written {
		messages, err = rewritten(messages, argumentsAsText)
	}
	if err != nil {
		return "", err
	}
	return t.templates.Render(ctx, messages, o)
}

// Reasoning is how a model's thoughts stand before its answer.
type Reasoning struct {
	// Opens and Closes stand around them; empty where the model does not think.
	Opens, Closes string
	// Label follows Opens and is not part of the reasoning.
	Label string
	// Interrupted is a marker that ends reasoning as Closes does, and begins a call.
	Interrupted string
	// Always: some text precedes each answer, up to Closes.
	Always bool
}

// Reasoning returns how this model marks reasoning, according to its template
// and the tokens of its vocabulary.
func (t *Text) Reasoning() Reasoning {
	if t.templates == nil {
		return Reasoning{}
	}
	all := func(texts ...string) bool {
		for _, text := range texts {
			if _, token := t.Tokenizer.ID(text); !token || !t.templates.Says(text) {
				return false
			}
		}
		return true
	}
	switch {
	case all("<|channel|>", "<|message|>"):
		return Reasoning{Closes: "<|channel|>final<|message|>", Always: true}
	case all("<|channel>", "<channel|>"): // Gemma 4
		return Reasoning{Opens: "<|channel>", Closes: "<channel|>", Label: "thought\n", Interrupted: "<|tool_call>"}
	case all("[THINK]", "[/THINK]"): // Mistral, from version 11 of its tokenizer
		return Reasoning{Opens: "[THINK]", Closes: "[/THINK]"}
	case all("</think>"):
		return Reasoning{Opens: "<think>", Closes: "</think>"}
	}
	return Reasoning{}
}
