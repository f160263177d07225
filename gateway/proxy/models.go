package proxy

import (
	"context"
	"net/http"
	"strings"

	"metalfleet.dev/metalfleet/api/dialect"
	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/ollama"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/gateway/route"
)

func (p *Proxy) models(_ context.Context, c caller, w *reply, r *http.Request) error {
	if asksAnthropic(r) {
		return p.anthropicModels(c, w, r)
	}
	if err := p.ready(); err != nil {
		return err
	}
	list := []openai.Model{}
	for _, n := range p.shown(c) {
		list = append(list, modelOf(n.Name, n.Model))
	}
	return w.json(openai.NewModelList(list...))
}

func (p *Proxy) oneModel(ctx context.Context, c caller, w *reply, r *http.Request) error {
	name := strings.TrimPrefix(r.URL.Path, dialect.PathModels+"/")
	if asksAnthropic(r) {
		return p.anthropicModelNamed(ctx, c, w, name)
	}
	m, err := p.lookup(ctx, c, name)
	if err != nil {
		return err
	}
	return w.json(modelOf(name, m))
}

// shown are the names that the caller may ask for.
func (p *Proxy) shown(c caller) []route.Name {
	var out []route.Name
	for _, n := range p.Table.Names() {
		if c.may(n.Name, n.Model) {
			out = append(out, n)
		}
	}
	return out
}

// modelOf is a model as the OpenAI routes list it.
func modelOf(name string, m *route.Model) openai.Model {
	f := m.Facts()
	out := openai.NewModel(name, m.Created, m.Namespace)
	out.ModelFacts = openai.NewModelFacts(f.Context, openai.ModelMeta{TrainedTokens: f.Trained, Bytes: f.Bytes}, capabilities(f))
	return out
}

// capabilities are what a model is made for, in the words of Ollama and llama.cpp;
// none where its task is unknown. Only engines know whether a template writes tool
// calls or thoughts, so that is not among them.
func capabilities(f route.Facts) []string {
	switch f.Task {
	case model.Generate:
		return []string{"completion"}
	case model.Embed:
		return []string{"embedding"}
	case model.Rerank:
		return []string{"rerank"}
	}
	return nil
}

// tags lists the models as Ollama does.
func (p *Proxy) tags(_ context.Context, c caller, w *reply, _ *http.Request) error {
	if err := p.ready(); err != nil {
		return err
	}
	list := ollama.Tags{Models: []ollama.Model{}}
	for _, n := range p.shown(c) {
		list.Models = append(list.Models, ollama.NewModel(ollamaFacts(n.Name, n.Model)))
	}
	return w.json(list)
}

// show describes one model as Ollama does.
func (p *Proxy) show(ctx context.Context, c caller, w *reply, r *http.Request) error {
	body, release, err := p.readBody(c, w, r)
	if err != nil {
		w.Header().Set("Connection", "close")
		return err
	}
	defer release()
	name, err := ollama.DecodeShow(body)
	if err != nil {
		return err
	}
	m, err := p.lookup(ctx, c, name)
	if err != nil {
		return err
	}
	return w.json(ollama.NewShow(ollamaFacts(name, m)))
}

func ollamaFacts(name string, m *route.Model) ollama.Facts {
	f := m.Facts()
	return ollama.Facts{Name: name, Created: m.Created, Digest: f.Digest, Bytes: f.Bytes, Format: f.Format, Architecture: f.Architecture,
		Quantization: f.Quantization, ContextTokens: f.Context, Capabilities: capabilities(f)}
}

// ollamaVersion is what clients of Ollama ask first.
func ollamaVersion(_ context.Context, _ caller, w *reply, _ *http.Request) error {
	return w.json(ollama.VersionAnswer{Version: ollama.Version})
}
