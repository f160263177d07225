package serve

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"metalfleet.dev/metalfleet/api/intake"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/api/responses"
	"metalfleet.dev/metalfleet/metal/wire"
)

// contentPart is a text, or an image if there is one. The bytes of an image at a URL are
// fetched before the request is sent.
func contentPart(text string, image *openai.Image) *wire.ContentPart {
	if image == nil {
		return &wire.ContentPart{Part: &wire.ContentPart_Text{Text: text}}
	}
	return &wire.ContentPart{Part: &wire.ContentPart_Image{Image: image.Data}}
}

// imageParts are the parts of an item with images; nil if it has none.
func imageParts(i responses.Item) (out []*wire.ContentPart) {
	seen := false
	for _, p := range i.Content {
		if m, ok := p.Image(); ok {
			seen = true
			out = append(out, contentPart("", &m))
		} else {
			out = append(out, contentPart(p.Text, nil))
		}
	}
	if !seen {
		return nil
	}
	return out
}

const (
	// fetchTimeout bounds the fetching of all images of a request together, and
	// mostFetched their number.
	fetchTimeout = 20 * time.Second
	mostFetched  = 16
)

// fetchedImages are the images of one request that are fetched from URLs. All of them
// together may be as large as a request body, and their memory counts as that of one.
type fetchedImages struct {
	*handler
	ctx    context.Context // of the request
	tenant string
	room   int64
	number int
	until  time.Time
	kept   []intake.Kept
}

func (h *handler) imagesFor(r *http.Request) *fetchedImages {
	return &fetchedImages{handler: h, ctx: r.Context(), tenant: ownerOf(r.Header), room: h.MaxBodyBytes, until: time.Now().Add(fetchTimeout)}
}

// fetcher returns the function that fetches an image; nil if none may be fetched.
func (f *fetchedImages) fetcher() func(string) ([]byte, error) {
	if f.FetchImage == nil {
		return nil
	}
	return f.fetch
}

func (f *fetchedImages) fetch(url string) ([]byte, error) {
	if f.number++; f.number > mostFetched {
		return nil, fmt.Errorf("a request may have at most %d images by URL", mostFetched)
	}
	ctx, cancel := context.WithDeadline(f.ctx, f.until)
	defer cancel()
	from, length, err := f.FetchImage(ctx, url)
	if err != nil {
		return nil, err
	}
	defer from.Close() //nolint:errcheck // read to its end, or given up
	data, kept, err := f.bodies.Read(from, f.tenant, length, f.room, cancel)
	var refusal *openai.Error
	switch {
	case err == nil:
		f.room -= int64(len(data))
		f.kept = append(f.kept, kept)
		return data, nil
	case errors.As(err, &refusal) && refusal.Code == openai.CodeBodyTooLarge:
		return nil, fmt.Errorf("it has more than %d bytes", f.room)
	case refusal != nil && refusal.Code != openai.CodeOverloaded && refusal.Cause != nil:
		return nil, refusal.Cause
	}
	return nil, err
}

// release returns the memory of the images; twice does nothing.
func (f *fetchedImages) release() {
	for _, kept := range f.kept {
		kept.Release()
	}
}
