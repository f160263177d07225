package engine

import (
	"slices"
	"sync"
	"testing"
)

// TestImagesGiveWay: images of a tenant that find no room take that of others, from the one that holds
// the most and of requests that do without theirs, if all that they need is there.
func TestImagesGiveWay(t *testing.T) {
	type held = heldImages
	const done, waits, inUse = imageDone, imageWaits, imageInUse
	for name, c := range map[string]struct {
		held []held
		need int
		want []int // that each of the held has left; nil if there is no room
	}{
		"the tenant with the most":                {[]held{{"a", []int{20, 20}, done}, {"b", []int{10, 10, 10}, done}}, 16, []int{20, 30}},
		"the first of them":                       {[]held{{"a", []int{20, 30}, done}, {"b", []int{25}, done}}, 16, []int{30, 25}},
		"one that holds less, up to a fifth":      {[]held{{"a", []int{15, 15}, inUse}, {"b", []int{15}, inUse}, {"c", []int{8, 8}, done}, {"d", []int{6}, done}}, 20, []int{30, 15, 8, 6}},
		"no one that holds less than more":        {[]held{{"a", []int{30}, inUse}, {"b", []int{20}, inUse}, {"c", []int{10, 10}, done}}, 21, nil},
		"none where it is not enough":             {[]held{{"a", []int{20, 20}, inUse}, {"b", []int{25}, inUse}, {"c", []int{4}, done}}, 20, nil},
		"done ones first":                         {[]held{{"a", []int{20}, waits}, {"a", []int{20}, done}, {"b", []int{25}, waits}}, 20, []int{20, 0, 25}},
		"one that waits, of several":              {[]held{{"a", []int{20, 20}, waits}, {"b", []int{25}, waits}}, 20, []int{20, 25}},
		"not the last of a tenant while it waits": {[]held{{"a", []int{40}, waits}, {"b", []int{25}, waits}}, 20, nil},
	} {
		t.Run(name, func(t *testing.T) { testGiving(t, c.held, c.need, c.want) })
	}
}

// heldImages are those of a tenant's request.
type heldImages struct {
	tenant string
	pixels []int // of each image
	use    imageUse
}

// testGiving holds images, and then one more of another tenant.
func testGiving(t *testing.T, held []heldImages, need int, want []int) {
	h := newScaledImages(100 * 3)
	digest := byte(0)
	request := func(pixels []int) (images []*promptImage) {
		for _, n := range pixels {
			digest++
			images = append(images, &promptImage{digest: [32]byte{digest}, width: n, height: 1})
		}
		return images
	}
	var all [][]*promptImage
	for _, r := range held {
		images := request(r.pixels)
		if !h.hold(r.tenant, images) {
			t.Fatal("there is no room for the others")
		}
		h.set(images, r.use)
		all = append(all, images)
	}
	before := h.held.Held()
	mine := request([]int{need})
	fits := h.hold("new", mine)
	if fits != (want != nil) {
		t.Fatalf("there is room: %v", fits)
	}
	var left []int
	for _, images := range all {
		n := 0
		for _, m := range images {
			if h.keep(m, nil) {
				n += m.width
			}
		}
		left = append(left, n)
	}
	if !fits && h.held.Held() != before || fits && !slices.Equal(left, want) {
		t.Errorf("the others have %v left, want %v", left, want)
	}
	if fits {
		h.release("new", mine)
	}
	for i, images := range all {
		h.release(held[i].tenant, images)
	}
	if h.held.Held() != 0 || len(h.of) != 0 {
		t.Errorf("%d bytes are held after all requests", h.held.Held())
	}
}

// An image that several requests share is kept while one of them needs it, and one that was given up
// is decoded again for the next request.
func TestASharedImageIsKeptForEachOfItsRequests(t *testing.T) {
	h := newScaledImages(100 * 3)
	image := func(digest byte, n int) []*promptImage {
		return []*promptImage{{digest: [32]byte{digest}, width: n, height: 1}}
	}
	first, second := image(1, 40), image(1, 40)
	if !h.hold("a", first) || !h.hold("a", second) || !h.hold("b", image(2, 30)) {
		t.Fatal("there is no room")
	}
	if h.set(first, imageDone); h.hold("c", image(3, 20)) {
		t.Error("an image gives way that a request needs")
	}
	if h.set(second, imageDone); !h.hold("c", image(3, 20)) || h.keep(first[0], first) || h.keep(second[0], second) {
		t.Error("an image is kept that no request needs")
	}
	again := image(1, 20)
	if !h.hold("a", again) || again[0].scaled == first[0].scaled {
		t.Error("an image that was given up has pixels")
	}
	h.release("a", first)
	h.release("a", second)
	if h.held.Of("a") != 60 || !h.keep(again[0], again) {
		t.Errorf("%d bytes are held of the image that is used again", h.held.Of("a"))
	}
}

// TestImagesOfRequestsThatComeAtOnce: regardless of what others give up or get, a request that needs
// its images has their pixels, and nothing is held at the end.
func TestImagesOfRequestsThatComeAtOnce(t *testing.T) {
	p, data := sixteen(t)
	p.scaled = newScaledImages(7 * 16 * 16 * 3 / 2)
	var all sync.WaitGroup
	for _, tenant := range []string{"a", "a", "b", "b", "c", "d", "e"} {
		all.Go(func() {
			encoded := [][]byte{data}
			for range 300 {
				list, refusal := p.measured(t.Context(), tenant, encoded)
				if refusal != nil {
					t.Error(refusal)
					return
				}
				if p.decode(t.Context(), tenant, list, encoded) != nil {
					continue
				}
				images := newPromptImages(p, tenant, list)
				for _, done := range []bool{true, false} {
					if m := list[0]; p.scaled.keep(m, list) && m.scaled.pixels == nil {
						t.Error("an image that is kept has no pixels")
					}
					images.waits(done)
				}
				images.release()
			}
		})
	}
	all.Wait()
	if p.bytes() != 0 || len(p.scaled.of) != 0 {
		t.Errorf("%d bytes of %d images are held without a request", p.bytes(), len(p.scaled.of))
	}
}
