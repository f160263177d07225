package inspect

import (
	"context"
	"net/http"

	"metalfleet.dev/metalfleet/agent/hub"
	"metalfleet.dev/metalfleet/agent/s3"
	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// fromBucket looks at a folder of a bucket, or at one file in it.
func (r *Resolver) fromBucket(ctx context.Context, order v1alpha1.Inspection, fits check) (model.Record, error) {
	if order.SHA256 != "" {
		return model.Record{}, failure(v1alpha1.ReasonSourceForbidden, "model.sha256 applies to a single file of file:// and https://; remove it and put a file %s next to the model", s3.SumsFile)
	}
	src, err := s3.Parse(order.Source)
	if err != nil {
		return model.Record{}, err
	}
	token, err := r.token(order.TokenRef)
	if err != nil {
		return model.Record{}, err
	}
	keys, err := s3.ReadKeys(token)
	if err != nil {
		return model.Record{}, err
	}
	ctx, cancel := within(ctx)
	defer cancel()
	buckets := &s3.Client{Client: r.Client}
	all, err := buckets.List(ctx, src, keys)
	if err != nil {
		return model.Record{}, err
	}
	c, err := hub.Choose(all, order.Files)
	if err != nil {
		return model.Record{}, err
	}
	look := &hubLook{
		resolver: r, copied: new(copied), fits: fits, who: "the bucket",
		get: func(e hub.Entry, header http.Header) (*http.Response, error) {
			return buckets.File(ctx, src, e.Path, keys, header)
		},
	}
	if err := buckets.Digests(ctx, src, c.Files, all, keys); err != nil {
		return model.Record{}, err
	}
	return look.at(ctx, model.Record{Source: order.Source, Format: c.Format}, c, all)
}
