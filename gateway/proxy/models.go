package proxy

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"metalfleet.dev/metalfleet/api/anthropic"
	"metalfleet.dev/metalfleet/api/front"
	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/ollama"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/gateway/dispatch"
	"metalfleet.dev/metalfleet/gateway/route"
)

// catalog lists the models that a caller may use, in the formats of OpenAI, Anthropic and
// Ollama.
type catalog struct {
	gate   *gate
	limits *limits
	turns  *turns // of lists
}

// asksAnthropic reports whether a request for models comes from a client of Anthropic's
// API. The paths are the same as OpenAI's, but its clients always send their API version.
func asksAnthropic(r *http.Request) bool {
	return r.Header.Get(anthropic.HeaderVersion) != "" && front.IsModels(r.URL.Path)
}

// models lists all models, or returns the one that the path names.
func (t *catalog) models(ctx context.Context, c caller, w *reply, r *http.Request) error {
	if asksAnthropic(r) {
		return t.anthropic(ctx, c, w, r)
	}
	name := front.ModelOf(r.URL.Path)
	if name == "" {
		return t.list(ctx, c, w, openai.NewModelList(), func(n route.Name) any { return modelOf(n.Name, n.Model) })
	}
	n, err := t.gate.lookup(ctx, c, name)
	if err != nil {
		return err
	}
	return front.WriteJSON(w, modelOf(name, n.Model))
}

// list writes a list of all models. frame is the response with an empty one.
func (t *catalog) list(ctx context.Context, c caller, w *reply, frame any, describe func(route.Name) any) error {
	names, err := t.gate.models(c)
	if err != nil {
		return err
	}
	return front.WriteList(w, frame, encoded(ctx, t.turns, c.share(), names, describe))
}

// nameBytes is what a name of a page takes in memory.
const nameBytes = 64

// anthropic lists the models in pages, or returns the one that the path names.
func (t *catalog) anthropic(ctx context.Context, c caller, w *reply, r *http.Request) error {
	if name := front.ModelOf(r.URL.Path); name != "" {
		n, err := t.gate.lookup(ctx, c, name)
		if err != nil {
			return err
		}
		return front.WriteJSON(w, anthropicModel(name, n.Model))
	}
	names, err := t.gate.models(c)
	if err != nil {
		return err
	}
	page, err := anthropic.ParsePage(r.URL.Query())
	if err != nil {
		return err
	}
	kept, err := t.limits.bodies.Hold(c.share(), nameBytes*int64(page.Limit))
	if err != nil {
		return err
	}
	defer kept.Release()
	end, err := t.turns.begin(ctx, c.share())
	if err != nil {
		return dispatch.Ended(ctx)
	}
	chosen, more, err := anthropic.PageOf(page, names, func(n route.Name) string { return n.Name })
	end()
	if err != nil {
		return err
	}
	first, last := "", ""
	if n := len(chosen); n > 0 {
		first, last = chosen[0].Name, chosen[n-1].Name
	}
	return front.WriteList(w, anthropic.NewModelList(first, last, more),
		encoded(ctx, t.turns, c.share(), slices.Values(chosen), func(n route.Name) any { return anthropicModel(n.Name, n.Model) }))
}

func anthropicModel(name string, m *route.Model) anthropic.Model {
	f := m.Facts()
	out := anthropic.NewModel(name, m.Created, f.Context)
	out.Description = describe(f)
	return out
}

// describe returns a description for a model menu: architecture, quantization and context
// length, if known.
func describe(f route.Facts) string {
	var known []string
	for _, s := range []string{f.Architecture, f.Quantization} {
		if s != "" {
			known = append(known, s)
		}
	}
	if f.Context > 0 {
		known = append(known, fmt.Sprintf("%d tokens of context", f.Context))
	}
	return strings.Join(known, ", ")
}

// modelOf returns a model as the OpenAI routes list it.
func modelOf(name string, m *route.Model) openai.Model {
	f := m.Facts()
	out := openai.NewModel(name, m.Created, m.Namespace)
	out.ModelFacts = openai.NewModelFacts(f.Context, openai.ModelMeta{TrainedTokens: f.Trained, Bytes: f.Bytes}, capabilities(f))
	return out
}

// capabilities returns the tasks of a model, as Ollama and llama.cpp name them; none if
// unknown. Reasoning depends on the template, which only engines know, so it is not listed.
func capabilities(f route.Facts) []string {
	switch f.Task {
	case model.Generate:
		out := []string{"completion"}
		if f.Tools {
			out = append(out, "tools")
		}
		if f.Sees {
			out = append(out, "vision")
		}
		return out
	case model.Embed:
		return []string{"embedding"}
	case model.Rerank:
		return []string{"rerank"}
	}
	return nil
}

// tags lists the models as Ollama does.
func (t *catalog) tags(ctx context.Context, c caller, w *reply, _ *http.Request) error {
	return t.list(ctx, c, w, ollama.Tags{Models: []ollama.Model{}}, func(n route.Name) any { return ollama.NewModel(ollamaFacts(n.Name, n.Model)) })
}

// show describes one model as Ollama does.
func (t *catalog) show(ctx context.Context, c caller, w *reply, r *http.Request) error {
	body, kept, err := t.limits.readBody(c, w, r)
	if err != nil {
		return err
	}
	defer kept.Release()
	end, err := t.limits.decoding.begin(ctx, c.share(), len(body))
	if err != nil {
		return err
	}
	name, err := ollama.DecodeShow(body)
	end()
	if err != nil {
		return err
	}
	n, err := t.gate.lookup(ctx, c, name)
	if err != nil {
		return err
	}
	return front.WriteJSON(w, ollama.NewShow(ollamaFacts(name, n.Model)))
}

func ollamaFacts(name string, m *route.Model) ollama.Facts {
	f := m.Facts()
	return ollama.Facts{Name: name, Created: m.Created, Digest: f.Digest, Bytes: f.Bytes, Format: f.Format, Architecture: f.Architecture,
		Quantization: f.Quantization, ContextTokens: f.Context, Capabilities: capabilities(f)}
}
