package proxy

import (
	"context"
	"math"
	"runtime"

	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/gateway/dispatch"
	"metalfleet.dev/metalfleet/gateway/pick"
)

// Bodies of up to smallBody bytes are decoded without a turn: that takes a fraction of a
// millisecond. Those of up to mediumBody take up to 64 times as long, and do not wait for larger ones.
const smallBody, mediumBody = 4 << 10, 256 << 10

// decoding bounds how many bodies are decoded at once. Go lets each waiting goroutine run in turn, so
// that hundreds that decode would delay every other request by hundreds of time slices.
type decoding struct{ medium, large *turns }

// newDecoding returns turns for a part of the processors. None is refused.
func newDecoding() *decoding {
	n := runtime.GOMAXPROCS(0)
	return &decoding{newTurns(max(1, n/4), math.MaxInt), newTurns(max(1, n/2), math.MaxInt)}
}

// begin waits for a turn to decode a body of a length, which end ends.
func (d *decoding) begin(ctx context.Context, share string, bytes int) (end func(), err error) {
	of := d.large
	switch {
	case bytes <= smallBody:
		return func() {}, nil
	case bytes <= mediumBody:
		of = d.medium
	}
	if end, err = of.begin(ctx, share); err != nil {
		return nil, dispatch.Ended(ctx)
	}
	return end, nil
}

// outline has the parts of a request body that the gateway needs.
type outline struct {
	openai.Envelope
	prefix pick.Prefix
	// images, imageBytes and beyond are the results of imagesIn.
	images, imageBytes, beyond int64
}

// outlineOf reads a body. Everything that takes time for each byte of it happens here.
func outlineOf(path string, body []byte, tenant string, keepAttribution bool) (o outline, err error) {
	if o.Envelope, err = envelopeOf(path, body); err != nil {
		return o, err
	}
	o.images, o.imageBytes, o.beyond = imagesIn(o.Messages)
	o.prefix = prefixFor(o.Envelope, tenant, keepAttribution)
	return o, nil
}

// outline is outlineOf in a turn of the caller.
func (i *inference) outline(ctx context.Context, c caller, path string, body []byte) (outline, error) {
	end, err := i.limits.decoding.begin(ctx, c.share(), len(body))
	if err != nil {
		return outline{}, err
	}
	defer end()
	return outlineOf(path, body, c.tenant(), i.keepAttribution)
}
