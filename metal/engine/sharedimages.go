package engine

import (
	"cmp"
	"crypto/sha256"
	"slices"
	"sync"

	"metalfleet.dev/metalfleet/metal/share"
	"metalfleet.dev/metalfleet/metal/vision"
)

// scaledImages are the scaled images that requests hold. Requests of a tenant that have the same
// image at a time, such as the choices of one answer, share it: it is decoded and counted once.
// They give way to images of another tenant that find no room (giving), except for requests that
// need them now.
type scaledImages struct {
	held *share.Bytes
	// floor is what a tenant may have at the cost of others that hold less: one image of the largest
	// usual size.
	floor int64

	mu     sync.Mutex
	of     map[imageKey]*scaledImage // guarded by mu
	nextID int                       // guarded by mu
}

type imageKey struct {
	tenant string
	digest [sha256.Size]byte // of the encoded image
}

// imageUse is how much a request needs the pixels of an image.
type imageUse int

const (
	// imageInUse is an image that is decoded, or of a prompt that is computed.
	imageInUse imageUse = iota
	// imageWaits is one of a prompt that waits.
	imageWaits
	// imageDone is one of a prompt that was computed: it is needed again only if the KV is lost.
	imageDone
)

// scaledImage is an image of one request or more.
type scaledImage struct {
	id    int // in the order of their coming
	key   imageKey
	bytes int64
	users []*promptImage // guarded by scaledImages.mu
	// pixels are nil until they are decoded, by the request that has the place for it. They are
	// kept until the requests end, because a prompt that lost its KV needs them again, or until they
	// are given up.
	pixels  *vision.RGB
	givenUp bool // guarded by scaledImages.mu
}

// use is that of the request which needs it most. It is called with mu held.
func (i *scaledImage) use() imageUse {
	least := imageDone
	for _, m := range i.users {
		least = min(least, m.use)
	}
	return least
}

func newScaledImages(bytes int64) *scaledImages {
	return &scaledImages{held: share.NewBytes(bytes), floor: bytes / 5, of: map[imageKey]*scaledImage{}}
}

// hold has a request share images until release is called; ok is false if others hold too many.
func (h *scaledImages) hold(tenant string, images []*promptImage) (ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var need int64
	for _, m := range images {
		key := imageKey{tenant, m.digest}
		if h.of[key] == nil {
			h.nextID++
			h.of[key] = &scaledImage{id: h.nextID, key: key, bytes: m.bytes()}
			need += m.bytes()
		}
		m.scaled = h.of[key]
		m.scaled.users = append(m.scaled.users, m)
	}
	if !h.take(tenant, need) {
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
		i := m.scaled
		i.users = slices.DeleteFunc(i.users, func(u *promptImage) bool { return u == m })
		if len(i.users) == 0 && !i.givenUp {
			delete(h.of, i.key)
			free += i.bytes
		}
	}
	return free
}

// set has a request use its images in this way.
func (h *scaledImages) set(images []*promptImage, use imageUse) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, m := range images {
		m.use = use
	}
}

// keep has a request need its images from now on; ok is false if this one of them was given up.
func (h *scaledImages) keep(m *promptImage, images []*promptImage) (ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if m.scaled.givenUp {
		return false
	}
	for _, m := range images {
		m.use = imageInUse
	}
	return true
}

// take counts images of a tenant. If there is no room, images of others are given up for them. It is
// called with mu held.
func (h *scaledImages) take(tenant string, need int64) bool {
	if h.held.Take(tenant, need) {
		return true
	}
	for _, i := range h.giving(tenant, h.held.Of(tenant)+need, h.held.Lacks(tenant, need)) {
		i.pixels, i.givenUp = nil, true
		delete(h.of, i.key)
		h.held.Give(i.key.tenant, i.bytes)
	}
	return h.held.Take(tenant, need)
}

// giving returns images of others that make room for a tenant that would hold this much; none if
// it would not be enough. Each is of the tenant that holds the most, which is more than that, unless
// this is at most the floor: done ones first, and of these the oldest. The last image of a tenant
// does not give way while it waits: its prompt is computed soon. It is called with mu held.
func (h *scaledImages) giving(tenant string, would, lacks int64) (out []*scaledImage) {
	left, of := map[string]int64{}, map[string][]*scaledImage{}
	for key, i := range h.of {
		if key.tenant != tenant && i.use() > imageInUse {
			of[key.tenant] = append(of[key.tenant], i)
		}
	}
	for name, images := range of {
		left[name] = h.held.Of(name)
		slices.SortFunc(images, func(a, b *scaledImage) int {
			return cmp.Or(cmp.Compare(b.use(), a.use()), cmp.Compare(a.id, b.id))
		})
	}
	for lacks > 0 {
		most := ""
		for name, n := range left {
			if _, some := left[most]; !some || n > left[most] {
				most = name
			}
		}
		if len(left) == 0 || would > h.floor && left[most] <= would {
			return nil
		}
		if len(of[most]) == 0 || of[most][0].use() == imageWaits && left[most] <= of[most][0].bytes {
			delete(left, most)
			continue
		}
		i := of[most][0]
		out, of[most] = append(out, i), of[most][1:]
		left[most] -= i.bytes
		lacks -= i.bytes
	}
	return out
}
