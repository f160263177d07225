package engine

import (
	"crypto/sha256"
	"sync"

	"metalfleet.dev/metalfleet/metal/share"
	"metalfleet.dev/metalfleet/metal/vision"
)

// scaledImages are the scaled images that requests hold. Requests of a tenant that have the same
// image at a time, such as the choices of one answer, share it: it is decoded and counted once.
type scaledImages struct {
	held *share.Bytes

	mu sync.Mutex
	of map[imageKey]*scaledImage // guarded by mu
}

type imageKey struct {
	tenant string
	digest [sha256.Size]byte // of the encoded image
}

// scaledImage is an image of one request or more.
type scaledImage struct {
	users int // guarded by scaledImages.mu
	// pixels are nil until they are decoded, by the request that has the place for it. They are
	// kept until the requests end: a prompt that lost its KV needs them again.
	pixels *vision.RGB
}

func newScaledImages(bytes int64) *scaledImages {
	return &scaledImages{held: share.NewBytes(bytes), of: map[imageKey]*scaledImage{}}
}

// hold has a request share images until release is called; ok is false if others hold too many.
func (h *scaledImages) hold(tenant string, images []*promptImage) (ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var need int64
	for _, m := range images {
		key := imageKey{tenant, m.digest}
		if h.of[key] == nil {
			h.of[key] = &scaledImage{}
			need += m.bytes()
		}
		m.scaled = h.of[key]
		m.scaled.users++
	}
	if !h.held.Take(tenant, need) {
		h.leave(tenant, images)
		return false
	}
	return true
}

// release ends the use of images by a request.
func (h *scaledImages) release(tenant string, images []*promptImage) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.held.Give(tenant, h.leave(tenant, images))
}

// leave removes a user of images, and returns the bytes of those that have none left. It is called
// with mu held.
func (h *scaledImages) leave(tenant string, images []*promptImage) (free int64) {
	for _, m := range images {
		if m.scaled.users--; m.scaled.users == 0 {
			delete(h.of, imageKey{tenant, m.digest})
			free += m.bytes()
		}
	}
	return free
}
