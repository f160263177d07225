package proxy

import (
	"context"
	"net/http"
	"strings"

	"metalfleet.dev/metalfleet/api/dialect"
	"metalfleet.dev/metalfleet/api/openai"
)

func (p *Proxy) models(_ context.Context, c caller, w *reply, r *http.Request) error {
	if asksAnthropic(r) {
		return p.anthropicModels(c, w, r)
	}
	if err := p.ready(); err != nil {
		return err
	}
	names := p.Table.Names()
	list := make([]openai.Model, 0, len(names))
	for _, n := range names {
		if c.may(n.Name, n.Model) {
			list = append(list, openai.NewModel(n.Name, n.Model.Created, n.Model.Namespace))
		}
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
	return w.json(openai.NewModel(name, m.Created, m.Namespace))
}
