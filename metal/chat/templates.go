package chat

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Templates are the chat templates of one model, by name. They may be used by
// many goroutines at once.
type Templates struct {
	parsed map[string]*Template
	names  []string // of all, sorted
}

// NewTemplates parses templates by name. Only "default" and "tool_use" are ever
// used, so others are recorded but not parsed: a broken one has no effect. The
// error is an ErrTemplate.
func NewTemplates(sources map[string]string) (*Templates, error) {
	out := &Templates{parsed: map[string]*Template{}, names: slices.Sorted(maps.Keys(sources))}
	for _, name := range []string{defaultTemplate, toolTemplate} {
		source, ok := sources[name]
		if !ok {
			continue
		}
		t, err := Parse(source)
		if err != nil {
			return nil, fmt.Errorf("template %q: %w", name, err)
		}
		out.parsed[name] = t
	}
	if len(out.parsed) == 0 {
		return nil, out.none()
	}
	return out, nil
}

// mostShown is how many names of templates an error contains, each cut.
const mostShown = 8

func (t *Templates) none() error {
	var shown []string
	for _, name := range t.names[:min(len(t.names), mostShown)] {
		shown = append(shown, fmt.Sprintf("%.64s", name))
	}
	if len(t.names) > mostShown {
		shown = append(shown, "...")
	}
	return fmt.Errorf("%w: there is no template named %q, only: %s", ErrTemplate, defaultTemplate, strings.Join(shown, ", "))
}

// Names lists the names of all templates, sorted.
func (t *Templates) Names() []string { return slices.Clone(t.names) }

// Pick returns the template for a conversation with or without tools, as
// transformers picks: "tool_use" for tools where there is one, else "default".
func (t *Templates) Pick(tools bool) (*Template, error) {
	if one := t.parsed[toolTemplate]; tools && one != nil {
		return one, nil
	}
	if one := t.parsed[defaultTemplate]; one != nil {
		return one, nil
	}
	return nil, t.none()
}

// Says reports whether any template that may be picked holds this text.
func (t *Templates) Says(text string) bool {
	for _, one := range t.parsed {
		if strings.Contains(one.source, text) {
			return true
		}
	}
	return false
}

// Render picks a template and renders it, as Template.Render does.
func (t *Templates) Render(ctx context.Context, messages []Message, o Options) (string, error) {
	tools, err := o.tools(messages)
	if err != nil {
		return "", err
	}
	one, err := t.Pick(tools != nil)
	if err != nil {
		return "", err
	}
	return one.render(ctx, messages, tools, o)
}

// Check renders a short conversation with each template that may be picked.
func (t *Templates) Check(ctx context.Context, o Options) error {
	for _, name := range []string{defaultTemplate, toolTemplate} {
		one := t.parsed[name]
		if one == nil {
			continue
		}
		o.Tools = nil
		if name == toolTemplate {
			o.Tools = json.RawMessage(sampleTools)
		}
		if err := one.Check(ctx, o); err != nil {
			return fmt.Errorf("template %q: %w", name, err)
		}
	}
	return nil
}

// sampleTools is a definition that every template for tools must take.
const sampleTools = `[{"type":"function","function":{"name":"now","description":"The time.","parameters":{"type":"object","properties":{},"required":[]}}}]`
