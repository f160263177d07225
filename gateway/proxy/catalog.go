package proxy

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"metalfleet.dev/metalfleet/api/anthropic"
	"metalfleet.dev/metalfleet/api/dialect"
	"metalfleet.dev/metalfleet/gateway/route"
)

// asksAnthropic reports whether a request for models comes from a client of
// Anthropic's API. It has the same paths as OpenAI's, but its clients always send
// their version.
func asksAnthropic(r *http.Request) bool {
	return r.Header.Get(anthropic.HeaderVersion) != "" && (r.URL.Path == dialect.PathModels || strings.HasPrefix(r.URL.Path, dialect.PathModels+"/"))
}

// anthropicModels lists the models that the caller may ask for, in pages.
func (p *Proxy) anthropicModels(c caller, w *reply, r *http.Request) error {
	if err := p.ready(); err != nil {
		return err
	}
	var all []anthropic.Model
	for _, n := range p.shown(c) {
		all = append(all, anthropicModel(n.Name, n.Model))
	}
	page, err := anthropic.NewModelList(all, r.URL.Query())
	if err != nil {
		return err
	}
	return w.json(page)
}

func (p *Proxy) anthropicModelNamed(ctx context.Context, c caller, w *reply, name string) error {
	m, err := p.lookup(ctx, c, name)
	if err != nil {
		return err
	}
	return w.json(anthropicModel(name, m))
}

func anthropicModel(name string, m *route.Model) anthropic.Model {
	f := m.Facts()
	out := anthropic.NewModel(name, m.Created, f.Context)
	out.Description = describe(f)
	return out
}

// describe returns a line for a menu of models: the architecture, the quantization
// and the context length, as far as they are known.
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
