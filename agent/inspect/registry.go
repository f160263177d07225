package inspect

import (
	"context"
	"net/http"

	"metalfleet.dev/metalfleet/agent/hub"
	"metalfleet.dev/metalfleet/agent/oci"
	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// fromRegistry inspects an artifact of a registry. From then on its files are
// identified by their digests, even if the tag moves.
func (r *Resolver) fromRegistry(ctx context.Context, order v1alpha1.Inspection, fits check) (model.Record, error) {
	if order.SHA256 != "" {
		return model.Record{}, failure(v1alpha1.ReasonSourceForbidden, "model.sha256 applies to a single file of file:// and https://; remove it and reference the artifact by its digest: oci://REGISTRY/REPOSITORY@sha256:DIGEST")
	}
	src, err := oci.Parse(order.Source)
	if err != nil {
		return model.Record{}, err
	}
	token, err := r.token(order.TokenRef)
	if err != nil {
		return model.Record{}, err
	}
	login, err := oci.ReadLogin(token)
	if err != nil {
		return model.Record{}, err
	}
	ctx, cancel := within(ctx)
	defer cancel()
	registries := &oci.Client{Client: r.Client}
	all, err := registries.List(ctx, src, login)
	if err != nil {
		return model.Record{}, err
	}
	c, err := hub.Choose(all, order.Files)
	if err != nil {
		return model.Record{}, err
	}
	look := &hubLook{resolver: r, copied: new(copied), fits: fits, who: "the registry", get: func(e hub.Entry, header http.Header) (*http.Response, error) {
		return registries.File(ctx, src, e.SHA256, login, header)
	}}
	return look.at(ctx, model.Record{Source: order.Source, Format: c.Format}, c, all)
}
