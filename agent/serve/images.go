package serve

import (
	"context"
	"errors"
	"time"

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

// imagesFor returns the function that fetches the images of one request; nil if none may
// be fetched. All of them together may be as large as a request body.
func (h *handler) imagesFor(ctx context.Context) func(string) ([]byte, error) {
	if h.FetchImage == nil {
		return nil
	}
	room, number, until := h.MaxBodyBytes, 0, time.Now().Add(fetchTimeout)
	return func(url string) ([]byte, error) {
		if number++; number > mostFetched {
			return nil, errors.New("a request may have at most 16 images by URL")
		}
		ctx, cancel := context.WithDeadline(ctx, until)
		defer cancel()
		data, err := h.FetchImage(ctx, url, room)
		room -= int64(len(data))
		return data, err
	}
}
