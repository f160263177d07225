// Package chat writes a conversation as the text that a model was trained on,
// with the template that came with the model.
//
// It owns where a model's folder keeps its templates and special tokens, the
// variables that templates see and the meaning of their errors; the language
// of templates is in jinja. It refuses templates that are none,
// and conversations that the template itself refuses. What a
// model writes of calls is read in toolcall.
//
// Start reading at ReadFolder, Parse and Template.Render.
package chat

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"metalfleet.dev/metalfleet/metal/chat/jinja"
)

// ErrTemplate means that the model's template is broken or exceeds its limits,
// which is an error of the model.
var ErrTemplate = errors.New("invalid chat template")

// ErrMessages means that the template does not accept this conversation, which
// is an error of the client.
var ErrMessages = errors.New("the conversation does not fit the chat template")

// RefusedError is a conversation that the template itself refused, in its own
// words. It is an ErrMessages.
type RefusedError struct {
	Message string
}

func (e *RefusedError) Error() string {
	return "the chat template rejected the conversation: " + e.Message
}

// Is makes every RefusedError an ErrMessages.
func (e *RefusedError) Is(target error) bool { return target == ErrMessages }

// Message is one turn.
type Message struct {
	Role    string
	Content string
	// Parts, if there are any, are the content in place of Content.
	Parts []Part
	Name  string
	// Extra is a JSON object with further members that templates read, such
	// as tool_calls; empty for none. It overrides the fields above.
	Extra json.RawMessage
	// whole is what ParseMessages read; the fields above do not count then.
	whole *jinja.Dict
}

// Part is a piece of content: a text or an image. Templates see images by their type
// alone.
type Part struct {
	Text  string
	Image bool
}

// content is what templates see: a text, or a list of parts with types.
func (m Message) content() any {
	if m.Parts == nil {
		return m.Content
	}
	list := jinja.NewList()
	for _, p := range m.Parts {
		d := jinja.NewDict()
		if p.Image {
			d.Set("type", "image")
		} else {
			d.Set("type", "text")
			d.Set("text", p.Text)
		}
		list.Items = append(list.Items, d)
	}
	return list
}

// ParseMessages parses a JSON array of messages with any members, which
// templates see unchanged. The error is an ErrMessages.
func ParseMessages(raw []byte) ([]Message, error) {
	v, err := jinja.ParseJSON(raw)
	list, ok := v.(*jinja.List)
	if err != nil || !ok {
		return nil, fmt.Errorf("%w: messages are not a JSON array: %w", ErrMessages, orNone(err))
	}
	out := make([]Message, 0, len(list.Items))
	for i, item := range list.Items {
		d, ok := item.(*jinja.Dict)
		if !ok {
			return nil, fmt.Errorf("%w: message %d: %w", ErrMessages, i, errNotObject)
		}
		m := Message{whole: d}
		for name, field := range map[string]*string{"role": &m.Role, "content": &m.Content, "name": &m.Name} {
			v, _ := d.Get(name)
			*field, _ = v.(string)
		}
		out = append(out, m)
	}
	return out, nil
}

// Options are the template's inputs in addition to the messages.
type Options struct {
	// AddGenerationPrompt opens the assistant's turn.
	AddGenerationPrompt bool
	// BOS and EOS are the texts of these tokens; empty where the model has
	// none. They override Special.
	BOS, EOS string
	// Special are the texts of special tokens by name, as ReadFolder gives
	// them.
	Special map[string]string
	// Tools is a JSON array of tool definitions; empty for none.
	Tools json.RawMessage
	// Arguments is a JSON object of further variables, such as
	// enable_thinking; empty for none.
	Arguments json.RawMessage
	// Now is the time that templates may print.
	Now time.Time
	// Limits bound the render; zero fields mean the defaults.
	Limits jinja.Limits
}

// What a render may make of a conversation, in bytes: textMade times its text, and at least
// leastMade, but not more than mostMade. Templates of ChatML, Llama 3, Qwen 3 and Mistral made
// 3 to 5 times the text of conversations of 1 MiB.
const (
	leastMade = 32 << 20
	textMade  = 16
	mostMade  = 128 << 20
)

// LimitsFor returns the limits of rendering a conversation whose inputs have this many bytes.
func LimitsFor(bytes int) jinja.Limits {
	return jinja.Limits{Bytes: min(max(leastMade, textMade*min(bytes, mostMade)), mostMade)}
}

// Template is one model's chat template. It may be used by many goroutines at
// once.
type Template struct {
	t *jinja.Template
	// developer: the template knows the role developer.
	developer bool
	source    string
}

// Parse reads a template; its error is an ErrTemplate.
func Parse(source string) (*Template, error) {
	t, err := jinja.Parse(source)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrTemplate, err)
	}
	return &Template{t: t, developer: strings.Contains(source, "developer"), source: source}, nil
}

// Render writes a conversation. Its error is ErrTemplate, ErrMessages or the
// context's.
func (t *Template) Render(ctx context.Context, messages []Message, o Options) (string, error) {
	tools, err := o.tools(messages)
	if err != nil {
		return "", err
	}
	return t.render(ctx, messages, tools, o)
}

// render is Render with tools that are read already.
func (t *Template) render(ctx context.Context, messages []Message, tools *jinja.List, o Options) (string, error) {
	vars, err := t.variables(messages, tools, o)
	if err != nil {
		return "", err
	}
	text, err := t.t.Render(ctx, jinja.Input{Variables: vars, Now: o.Now, Limits: o.Limits})
	var e *jinja.Error
	switch {
	case err == nil:
		return text, nil
	case errors.Is(err, jinja.ErrRaised) && errors.As(err, &e):
		return "", &RefusedError{Message: e.Message}
	case errors.Is(err, jinja.ErrLimit):
		return "", fmt.Errorf("%w: %w", ErrTemplate, err)
	case errors.Is(err, jinja.ErrRender):
		// The same template renders ordinary conversations, as the engine
		// finds out when it loads it; these values are what it failed on.
		return "", fmt.Errorf("%w: %w", ErrMessages, err)
	}
	return "", err
}

// Render parses a template and renders it once.
func Render(ctx context.Context, template string, messages []Message, o Options) (string, error) {
	t, err := Parse(template)
	if err != nil {
		return "", err
	}
	return t.Render(ctx, messages, o)
}

// Check renders a short conversation, so that a template that cannot work is
// found when the model is loaded.
func (t *Template) Check(ctx context.Context, o Options) error {
	o.AddGenerationPrompt = true
	_, err := t.Render(ctx, []Message{{Role: "user", Content: "Hello"}}, o)
	if err != nil && !errors.Is(err, ErrTemplate) && ctx.Err() == nil {
		return fmt.Errorf("%w: %w", ErrTemplate, err)
	}
	return err
}

func (t *Template) variables(messages []Message, tools *jinja.List, o Options) (*jinja.Dict, error) {
	if len(messages) == 0 {
		return nil, fmt.Errorf("%w: a conversation needs at least one message", ErrMessages)
	}
	vars := jinja.NewDict()
	list := jinja.NewList()
	for i, m := range messages {
		d, err := t.message(m)
		if err != nil {
			return nil, fmt.Errorf("%w: message %d: %w", ErrMessages, i, err)
		}
		list.Items = append(list.Items, d)
	}
	for name, text := range o.Special {
		vars.Set(name, text)
	}
	vars.Set("messages", list)
	vars.Set("tools", nil)
	vars.Set("documents", nil)
	vars.Set("add_generation_prompt", o.AddGenerationPrompt)
	for _, token := range [][2]string{{"bos_token", o.BOS}, {"eos_token", o.EOS}} {
		if token[1] != "" {
			vars.Set(token[0], token[1])
		}
	}
	if tools != nil {
		vars.Set("tools", tools)
	}
	return vars, o.addArguments(vars)
}

// addArguments sets the client's own variables, but for those that have a
// place of their own.
func (o Options) addArguments(vars *jinja.Dict) error {
	own := jinja.NewDict()
	if err := merge(own, o.Arguments); err != nil {
		return fmt.Errorf("%w: template arguments: %w", ErrMessages, err)
	}
	var refused error
	isFunction := jinja.Functions()
	own.Each(func(name string, v any) {
		if name == "messages" || name == "tools" || name == "add_generation_prompt" && v != true || isFunction(name) {
			refused = fmt.Errorf("%w: template arguments: %s cannot be set here", ErrMessages, name)
		}
	})
	if refused != nil {
		return refused
	}
	if v, _ := own.Get("documents"); v != nil {
		if l, ok := v.(*jinja.List); !ok || !objects(l) {
			return fmt.Errorf("%w: documents are not a JSON array of objects", ErrMessages)
		}
	}
	own.Each(vars.Set)
	return nil
}

func objects(l *jinja.List) bool {
	for _, item := range l.Items {
		if _, ok := item.(*jinja.Dict); !ok {
			return false
		}
	}
	return true
}

// tools reads the definitions; nil for none. It first checks how many values all JSON of the
// conversation has: reading them would take far more memory than their bytes.
func (o Options) tools(messages []Message) (*jinja.List, error) {
	if err := CheckValues(messages, o); err != nil {
		return nil, err
	}
	if len(o.Tools) == 0 {
		return nil, nil
	}
	v, err := jinja.ParseJSON(o.Tools)
	l, ok := v.(*jinja.List)
	if err != nil || !ok || !objects(l) {
		return nil, fmt.Errorf("%w: tools are not a JSON array of objects: %w", ErrMessages, orNone(err))
	}
	if len(l.Items) == 0 {
		return nil, nil
	}
	return l, nil
}

// message makes what a template sees of one turn, as transformers makes it:
// without the members that are null, and with reasoning under each of the names
// that templates look for. A template that does not know developers gets them
// as the system.
func (t *Template) message(m Message) (*jinja.Dict, error) {
	d := m.whole
	if d == nil {
		d = jinja.NewDict()
		d.Set("role", m.Role)
		d.Set("content", m.content())
		if m.Name != "" {
			d.Set("name", m.Name)
		}
		if err := merge(d, m.Extra); err != nil {
			return nil, err
		}
	}
	out := jinja.NewDict()
	reasoning := reasoningOf(d)
	if reasoning != nil {
		out.Set("thinking", reasoning)
	}
	d.Each(func(name string, v any) {
		if v != nil {
			out.Set(name, v)
		}
	})
	if reasoning != nil {
		out.Set("reasoning_content", reasoning)
	}
	if role, _ := out.Get("role"); role == "developer" && !t.developer {
		out.Set("role", "system")
	}
	return out, nil
}

// reasoningOf is a turn's reasoning under the first name that has it.
func reasoningOf(d *jinja.Dict) any {
	for _, name := range []string{"reasoning_content", "thinking", "reasoning"} {
		if v, _ := d.Get(name); v != nil {
			return v
		}
	}
	return nil
}

var errNotObject = errors.New("not a JSON object")

// merge adds the members of a JSON object.
func merge(to *jinja.Dict, raw json.RawMessage) error {
	if len(raw) == 0 {
		return nil
	}
	v, err := jinja.ParseJSON(raw)
	if err != nil {
		return err
	}
	d, ok := v.(*jinja.Dict)
	if !ok {
		return errNotObject
	}
	d.Each(to.Set)
	return nil
}

func orNone(err error) error {
	if err != nil {
		return err
	}
	return errors.New("another type of value")
}
